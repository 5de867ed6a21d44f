//! Creation of all weights of a model, each with its role.
//!
//! A [`Builder`] draws or loads weights and records their roles. [`Builder::finish`] then walks the model once and makes the
//! [`ParamTable`] that optimizers, logs and checks read.
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

use table::Record;

/// The source of the values of weights.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Random values, drawn on the host from the stream of (`seed`, path): the same on every device.
    Draw {
        /// Seed of all weights.
        seed: u64,
    },
    /// Given values, by path.
    Load(&'a Tensors),
}

/// Settings of a linear layer at init, beside the scheme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Start {
    /// Whether the layer has a bias. Default false.
    pub bias: bool,
    /// Factor of the standard deviation; of the gain of the norm, if the norm divides by the size of the weight. 0 makes the
    /// weight (or that gain) 0, and the bias of a head too. Default 1.
    pub gain: f64,
    /// Norm of the weight. Default none.
    pub norm: WeightNormConfig,
    /// Gain of the activation that the layer reads, for Scaled Weight Standardization. Default 1.
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
    /// Names of the modules under construction, outermost first.
    path: Vec<String>,
    records: HashMap<ParamId, Record>,
}

impl<'a> Builder<'a> {
    /// A builder for the shape, scheme and parametrization of a plan, on `device`, which must be an autodiff device for training.
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
            records: HashMap::new(),
        }
    }

    /// The device of the weights.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Calls `build` for the field `name` of the module under construction.
    pub fn within<R>(&mut self, name: &str, build: impl FnOnce(&mut Self) -> R) -> R {
        self.path.push(name.into());
        let built = build(self);
        self.path.pop();
        built
    }

    /// Calls `build` for element `block` of the field `blocks`. Parametrizations treat weights of a block as hidden: both of
    /// their sides grow with the width, and depth matters.
    ///
    /// # Panics
    /// If the plan has no such block.
    pub fn within_block<R>(&mut self, block: usize, build: impl FnOnce(&mut Self) -> R) -> R {
        let blocks = self.shape.blocks;
        assert!(block < blocks, "block {block} of a plan of {blocks} blocks: set n_layers to their number");
        let outer = self.block.replace(block);
        let built = self.within(&format!("blocks.{block}"), build);
        self.block = outer;
        built
    }

    /// A matrix `[fan_in, fan_out]` for the field `name`.
    pub fn matrix(&mut self, name: &str, role: Role, fans: [usize; 2]) -> Param<Tensor<2>> {
        let path = self.at(name);
        let (values, std) = self.values(&path, role, fans, Start::default());
        self.parameter(path, values, std, role, fans)
    }

    /// A linear layer with weight `[fan_in, fan_out]` for the field `name`. The weight has the given role, the bias, if any,
    /// [`Role::Bias`], and the parameters of the weight norm [`Role::Norm`].
    pub fn linear(&mut self, name: &str, role: Role, fans: [usize; 2], start: Start) -> Linear {
        let path = format!("{}.weight", self.at(name));
        let (values, std) = self.values(&path, role, fans, start);
        let norm = start.norm.build(&values, fans[1], start.activation_gain, start.gain, self.device);
        self.record_weight_norm(&norm);
        let weight = self.parameter(path, values, std, role, fans);
        let bias = start.bias.then(|| self.bias(&format!("{name}.bias"), name, role, fans, start.gain));
        let Factors { forward, backward, .. } = self.factors(role, fans);
        Linear::new(weight, bias, norm, [forward, forward * backward])
    }

    /// The bias, for the field `name`, of the layer `layer`, whose weight has this role, these fans and this gain.
    pub fn bias(&mut self, name: &str, layer: &str, role: Role, fans: [usize; 2], gain: f64) -> Param<Tensor<1>> {
        // The size of a bias must not depend on the width.
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
        let record = Record { spec: self.spec(Role::Bias, [1, fans[1]]), init_std, lr: 1.0, path: Some(path) };
        self.records.insert(param.id, record);
        param
    }

    /// A vector of equal values.
    pub fn constant(&mut self, value: f64, size: usize, role: Role) -> Param<Tensor<1>> {
        let param = Param::from_tensor(Tensor::full([size], value, self.device));
        self.record(param.id, role, size, 1.0);
        param
    }

    /// A learned scalar, of shape `[1]`, with `lr` as a further factor of its learning rate.
    pub fn scalar(&mut self, value: f64, lr: f64) -> Param<Tensor<1>> {
        let param = Param::from_tensor(Tensor::full([1], value, self.device));
        self.record(param.id, Role::Scale, 1, lr);
        param
    }

    /// A norm of a last axis of `width` entries, whose gain and bias have this role.
    pub fn norm(&mut self, config: &NormConfig, width: usize, role: Role) -> Norm {
        let stream = self.parametrization.base_width(self.shape.width);
        let norm = config.build(NormSite::inside(width, stream), self.device);
        self.record_norm(&norm, role);
        norm
    }

    /// The residual connection of a branch.
    pub fn residual(&mut self, plan: &BranchPlan) -> Residual {
        let mut residual = Residual::new(plan.placement, &plan.norm, plan.scale, plan.site, self.device);
        if plan.zero_last_gain {
            residual.zero_last_gain();
        }
        residual.norms().iter().for_each(|norm| self.record_norm(norm, Role::Norm));
        for scale in residual.scales() {
            self.record(scale.id, Role::Scale, scale.lazy_shape().num_elements(), plan.scale.lr_factor());
        }
        residual
    }

    /// The parametrization's factors of a matrix, under Adam.
    pub fn factors(&self, role: Role, fans: [usize; 2]) -> Factors {
        self.parametrization.factors(&self.spec(role, fans), self.shape, Update::Normalized)
    }

    /// The parametrization's factors of token and position embeddings, for a token table `[entries, width]`.
    pub fn input_factors(&self, fans: [usize; 2], positions: Positions) -> [f64; 2] {
        self.parametrization.inputs(&self.spec(Role::Embedding, fans), self.shape, positions)
    }

    /// Makes the table of the finished model, and assigns loaded weights.
    ///
    /// # Errors
    /// [`ModelError::Weights`] for tensors that are missing, unknown, or of another shape.
    ///
    /// # Panics
    /// If a weight of the model was not made by this builder or has another path than it was made with, or if a weight that
    /// was made is not in the model.
    pub fn finish<M: Module>(self, model: M) -> Result<(M, ParamTable), ModelError> {
        let table = ParamTable::new(&model, self.records, self.parametrization, self.shape);
        let model = match self.source {
            Source::Draw { .. } => model,
            Source::Load(tensors) => assign(model, tensors)?,
        };
        Ok((model, table))
    }

    /// The values of a matrix, and their root mean square, by the distribution if entries are independent.
    fn values(&self, path: &str, role: Role, fans: [usize; 2], start: Start) -> (Vec<f32>, f64) {
        let Source::Draw { seed } = self.source else { return (vec![0.0; fans[0] * fans[1]], 0.0) };
        let spec = self.spec(role, fans);
        let base = self.parametrization.base_spec(&spec, self.shape.width);
        let draw = self.scheme.draw(&base);
        // The entries of a matrix whose size follows from its shape already shrink with the width.
        let shrunk = if draw.has_own_size() { (spec.fan_in / base.fan_in).sqrt() } else { 1.0 };
        let draw = match start.norm.divides_by_size() {
            // Any size works that is large against eps, because the norm divides by it.
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

    fn parameter(
        &mut self,
        path: String,
        values: Vec<f32>,
        std: f64,
        role: Role,
        fans: [usize; 2],
    ) -> Param<Tensor<2>> {
        let param = Param::from_data(TensorData::new(values, fans), self.device);
        let record = Record { spec: self.spec(role, fans), init_std: std, lr: 1.0, path: Some(path) };
        self.records.insert(param.id, record);
        param
    }

    fn at(&self, name: &str) -> String {
        self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".")
    }

    /// Records the role of a vector that starts as a constant.
    fn record(&mut self, id: ParamId, role: Role, size: usize, lr: f64) {
        self.records.insert(id, Record { spec: self.spec(role, [1, size]), init_std: 0.0, lr, path: None });
    }

    fn record_weight_norm(&mut self, norm: &WeightNorm) {
        norm.visit(&mut Walk::new(|_: &str, id, shape: Vec<usize>| {
            self.record(id, Role::Norm, shape.iter().product(), 1.0);
        }));
    }

    fn record_norm(&mut self, norm: &Norm, role: Role) {
        let statistics = norm.statistics();
        norm.visit(&mut Walk::new(|_: &str, id, shape: Vec<usize>| match statistics.contains(&id) {
            true => self.record(id, Role::Statistic, 1, 1.0),
            false => self.record(id, role, shape.iter().product(), 1.0),
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
