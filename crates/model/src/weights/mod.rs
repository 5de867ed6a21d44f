//! The one door through which weights come into a model, each with its role.
//!
//! A [`Builder`] draws weights or takes them from a file, and notes of each what it is for. When the model stands,
//! [`Builder::finish`] walks it once and makes the [`ParamTable`] that optimizers, logs and checks read.
//!
//! ```
//! use burn::module::Module;
//! use burn::tensor::Device;
//! use unitgain_model::weights::{Builder, Source, Start};
//! use unitgain_model::{Linear, ModelConfig, Parametrization, Role};
//!
//! #[derive(Module, Debug)]
//! struct Mixer { mix: Linear }
//!
//! let config = ModelConfig { parametrization: Parametrization::mup(64), ..ModelConfig::default() };
//! let device = Device::flex();
//! let mut builder = Builder::new(&config.plan(16)?, Source::Draw { seed: 1 }, &device);
//! let mixer = Mixer { mix: builder.linear("mix", Role::MlpOut, [128, 128], Start::default()) };
//! let (mixer, table) = builder.finish(mixer)?;
//! assert_eq!(table.entries()[0].path, "mix.weight");
//! assert_eq!(table.entries()[0].factors.lr, 0.5);
//! # Ok::<(), unitgain_model::ModelError>(())
//! ```

mod table;
mod tensors;

use crate::error::ModelError;
use crate::linear::Linear;
use crate::plan::{BranchPlan, Plan};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::HashMap;
use unitgain_init::{Distribution, Draw, Role, Scheme, Spec};
use unitgain_mup::{Factors, Parametrization, Positions, Shape, Update};
use unitgain_norms::weight::{WeightNorm, WeightNormConfig};
use unitgain_norms::{Norm, NormConfig, NormSite};
use unitgain_residual::Residual;

pub use table::{ParamEntry, ParamTable, Walk};
pub use tensors::{Tensors, assign, of};

use table::Birth;

/// Where the numbers of weights come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Drawn on the host, each weight from the stream of (`seed`, path): the same weights on every device.
    Draw {
        /// Seed of all weights.
        seed: u64,
    },
    /// Taken by path; nothing is drawn.
    Load(&'a Tensors),
}

/// How a linear layer starts, beside what the scheme draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Start {
    /// Whether the layer has a bias. Default false.
    pub bias: bool,
    /// Factor of the drawn standard deviation. At 0 the weight is 0, and so is the bias of a head. Default 1.
    pub gain: f64,
    /// Norm of the weight. Default none.
    pub norm: WeightNormConfig,
    /// Gain of the activation that the layer reads, for a norm of the weight that divides it out. Default 1.
    pub activation_gain: f64,
}

impl Default for Start {
    fn default() -> Self {
        Self { bias: false, gain: 1.0, norm: WeightNormConfig::None {}, activation_gain: 1.0 }
    }
}

/// Makes the weights of a model.
#[derive(Debug)]
pub struct Builder<'a> {
    source: Source<'a>,
    scheme: Scheme,
    parametrization: Parametrization,
    shape: Shape,
    heads: usize,
    device: &'a Device,
    block: Option<usize>,
    /// Names of the modules that are being built, from the outermost.
    path: Vec<String>,
    births: HashMap<ParamId, Birth>,
}

impl<'a> Builder<'a> {
    /// For a model of the plan's shape, scheme and parametrization, on `device`: an autodiff device if the model is to be
    /// trained.
    pub fn new(plan: &Plan, source: Source<'a>, device: &'a Device) -> Self {
        Self {
            source,
            scheme: plan.init,
            parametrization: plan.parametrization,
            shape: plan.shape,
            heads: plan.blocks[0].attention.heads,
            device,
            block: None,
            path: Vec::new(),
            births: HashMap::new(),
        }
    }

    /// The device that weights are put on.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// What `build` makes, as the field `name` of the module that is being built.
    pub fn within<R>(&mut self, name: &str, build: impl FnOnce(&mut Self) -> R) -> R {
        self.path.push(name.into());
        let built = build(self);
        self.path.pop();
        built
    }

    /// What `build` makes, as block `block` of the field `blocks`. Weights inside of a block are hidden: both of their sides
    /// grow with the width, and their depth counts.
    pub fn within_block<R>(&mut self, block: usize, build: impl FnOnce(&mut Self) -> R) -> R {
        self.block = Some(block);
        let built = self.within(&format!("blocks.{block}"), build);
        self.block = None;
        built
    }

    /// A matrix `[fan_in, fan_out]`: the field `name`.
    pub fn matrix(&mut self, name: &str, role: Role, fans: [usize; 2]) -> Param<Tensor<2>> {
        let path = self.at(name);
        let (values, std) = self.values(&path, role, fans, Start::default());
        self.born(path, values, std, role, fans)
    }

    /// A linear layer of `[fan_in, fan_out]`: the field `name`. Its weight has the role; its bias, where `start` has one, is a
    /// [`Role::Bias`], and what its norm learns a [`Role::Norm`].
    pub fn linear(&mut self, name: &str, role: Role, fans: [usize; 2], start: Start) -> Linear {
        let path = format!("{}.weight", self.at(name));
        let (values, std) = self.values(&path, role, fans, start);
        let norm = start.norm.build(&values, fans[1], start.activation_gain, start.gain, self.device);
        self.note_weight_norm(&norm);
        let weight = self.born(path, values, std, role, fans);
        let bias = start.bias.then(|| self.bias(&format!("{name}.bias"), name, role, fans, start.gain));
        let Factors { forward, backward, .. } = self.factors(role, fans);
        Linear::new(weight, bias, norm, [forward, forward * backward])
    }

    /// The bias of the layer `layer`, whose weight has this role, these fans and this gain: the field `name`.
    pub fn bias(&mut self, name: &str, layer: &str, role: Role, fans: [usize; 2], gain: f64) -> Param<Tensor<1>> {
        // Its size must not depend on the width.
        let base = self.parametrization.base_spec(&self.spec(role, fans), self.shape.width);
        let start = match role {
            Role::Head if gain == 0.0 => Distribution::Constant(0.0),
            _ => self.scheme.bias(&base),
        };
        let path = self.at(name);
        let (values, init_std) = match self.source {
            Source::Draw { seed } => {
                (start.draw(seed, &format!("{}.bias", self.at(layer)), 1, fans[1]), start.rms(1.0))
            }
            Source::Load(_) => (vec![0.0; fans[1]], 0.0),
        };
        let param = Param::from_data(TensorData::new(values, [fans[1]]), self.device);
        let birth = Birth { spec: self.spec(Role::Bias, [1, fans[1]]), init_std, lr: 1.0, path: Some(path) };
        self.births.insert(param.id, birth);
        param
    }

    /// A vector of equal numbers.
    pub fn constant(&mut self, value: f64, size: usize, role: Role) -> Param<Tensor<1>> {
        let param = Param::from_tensor(Tensor::full([size], value, self.device));
        self.note(param.id, role, size, 1.0);
        param
    }

    /// A learned number, of shape `[1]`, whose learning rate is `lr` times that of the table.
    pub fn scalar(&mut self, value: f64, lr: f64) -> Param<Tensor<1>> {
        let param = Param::from_tensor(Tensor::full([1], value, self.device));
        self.note(param.id, Role::Scale, 1, lr);
        param
    }

    /// A norm of a last axis of `width` entries, its gain and bias of this role.
    pub fn norm(&mut self, config: &NormConfig, width: usize, role: Role) -> Norm {
        let stream = self.parametrization.base_width(self.shape.width);
        let norm = config.build(NormSite::inside(width, stream), self.device);
        self.note_norm(&norm, role);
        norm
    }

    /// The residual connection of a branch.
    pub fn residual(&mut self, plan: &BranchPlan) -> Residual {
        let mut residual = Residual::new(plan.placement, &plan.norm, plan.scale, plan.site, self.device);
        if plan.zero_last_gain {
            residual.zero_last_gain();
        }
        residual.norms().iter().for_each(|norm| self.note_norm(norm, Role::Norm));
        for scale in residual.scales() {
            self.note(scale.id, Role::Scale, scale.lazy_shape().num_elements(), plan.scale.lr_factor());
        }
        residual
    }

    /// The parametrization's factors of a matrix; those of the learning rate are Adam's.
    pub fn factors(&self, role: Role, fans: [usize; 2]) -> Factors {
        self.parametrization.factors(&self.spec(role, fans), self.shape, Update::Normalized)
    }

    /// What the embedding of a token and that of its position are multiplied by, for a table of `[entries, width]`.
    pub fn input_factors(&self, fans: [usize; 2], positions: Positions) -> [f64; 2] {
        self.parametrization.inputs(&self.spec(Role::Embedding, fans), self.shape, positions)
    }

    /// The model with its table. Loaded weights that are constants when drawn (gains, scales, statistics) are put in here.
    ///
    /// # Errors
    /// [`ModelError::Weights`] for tensors that are missing, unknown or of another shape than the model's.
    ///
    /// # Panics
    /// If a weight of the model did not come from this builder, stands under another name than it was given, or if one that
    /// did is not in the model.
    pub fn finish<M: Module>(self, model: M) -> Result<(M, ParamTable), ModelError> {
        let table = ParamTable::new(&model, self.births, self.parametrization, self.shape);
        let model = match self.source {
            Source::Draw { .. } => model,
            Source::Load(tensors) => assign(model, tensors)?,
        };
        Ok((model, table))
    }

    /// The numbers of a matrix and the root of their mean square, as the distribution has it where there is one.
    fn values(&self, path: &str, role: Role, fans: [usize; 2], start: Start) -> (Vec<f32>, f64) {
        let Source::Draw { seed } = self.source else { return (vec![0.0; fans[0] * fans[1]], 0.0) };
        let spec = self.spec(role, fans);
        let base = self.parametrization.base_spec(&spec, self.shape.width);
        let draw = self.scheme.draw(&base);
        // A matrix whose size follows from its own shape has shrunk with the width already.
        let shrunk = if draw.has_own_size() { (spec.fan_in / base.fan_in).sqrt() } else { 1.0 };
        let draw = match start.norm.divides_by_size() {
            // Its size is divided out, so far as it is large against eps.
            true => Draw::Entries(Distribution::Normal { std: (fans[0] as f64).powf(-0.5) }),
            false if start.gain == 0.0 => Draw::Entries(Distribution::Constant(0.0)),
            false => draw.scaled(self.factors(role, fans).init * start.gain * shrunk),
        };
        let values = draw.matrix(seed, path, fans[0], fans[1], self.heads);
        let square = |x: &f32| f64::from(*x) * f64::from(*x);
        let rms = match draw {
            Draw::Entries(distribution) => distribution.rms(fans[0] as f64),
            Draw::Orthogonal(_) | Draw::Identity(_) | Draw::Zero(..) | Draw::Mimetic { .. } => {
                (values.iter().map(square).sum::<f64>() / values.len() as f64).sqrt()
            }
        };
        (values, rms)
    }

    fn born(&mut self, path: String, values: Vec<f32>, std: f64, role: Role, fans: [usize; 2]) -> Param<Tensor<2>> {
        let param = Param::from_data(TensorData::new(values, fans), self.device);
        let birth = Birth { spec: self.spec(role, fans), init_std: std, lr: 1.0, path: Some(path) };
        self.births.insert(param.id, birth);
        param
    }

    fn at(&self, name: &str) -> String {
        self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".")
    }

    /// Notes the role of a vector that starts as a constant.
    fn note(&mut self, id: ParamId, role: Role, size: usize, lr: f64) {
        self.births.insert(id, Birth { spec: self.spec(role, [1, size]), init_std: 0.0, lr, path: None });
    }

    fn note_weight_norm(&mut self, norm: &WeightNorm) {
        norm.visit(&mut Walk::new(|_: &str, id, shape: Vec<usize>| {
            self.note(id, Role::Norm, shape.iter().product(), 1.0);
        }));
    }

    fn note_norm(&mut self, norm: &Norm, role: Role) {
        let statistics = norm.statistics();
        norm.visit(&mut Walk::new(|_: &str, id, shape: Vec<usize>| match statistics.contains(&id) {
            true => self.note(id, Role::Statistic, 1, 1.0),
            false => self.note(id, role, shape.iter().product(), 1.0),
        }));
    }

    fn spec(&self, role: Role, [fan_in, fan_out]: [usize; 2]) -> Spec {
        Spec {
            role,
            fan_in: fan_in as f64,
            fan_out: fan_out as f64,
            blocks: self.shape.blocks,
            block: self.block,
            width: self.shape.width as f64,
        }
    }
}
