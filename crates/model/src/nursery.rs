use crate::axes::BranchAxes;
use crate::config::ModelConfig;
use crate::linear::Linear;
use crate::qk_norm::{QkNorm, QkNormOver};
use crate::table::{Birth, ParamTable, Walk};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::HashMap;
use unitgain_init::{Distribution, Draw, Role, Scheme, Spec};
use unitgain_mup::{Factors, Update};
use unitgain_norms::weight::{WeightNorm, WeightNormConfig};
use unitgain_norms::{Norm, NormConfig, NormSite};
use unitgain_residual::{Branch, Joint, Position, Residual, Site};

/// The factor of a branch that starts at 0.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    /// The weight that writes the stream.
    Weight,
    /// The gain of that weight, where its size is divided out.
    WeightGain,
    /// The gain of the norm behind the branch.
    NormGain,
}

/// The one door through which parameters come into a model, each with its role.
pub(crate) struct Nursery<'a> {
    /// Resolved.
    config: &'a ModelConfig,
    scheme: Scheme,
    seed: u64,
    device: &'a Device,
    /// The block that is being built.
    block: Option<usize>,
    births: HashMap<ParamId, Birth>,
}

impl<'a> Nursery<'a> {
    pub(crate) fn new(config: &'a ModelConfig, seed: u64, device: &'a Device) -> Self {
        let scheme = config.init.unwrap_or_else(Scheme::gpt2);
        Self { config, scheme, seed, device, block: None, births: HashMap::new() }
    }

    /// What follows is in this block.
    pub(crate) fn enter(&mut self, block: Option<usize>) {
        self.block = block;
    }

    /// A matrix `[fan_in, fan_out]`, drawn from the stream of (seed, path).
    pub(crate) fn matrix(&mut self, path: &str, role: Role, fan_in: usize, fan_out: usize) -> Param<Tensor<2>> {
        let (data, std) = self.draw(path, role, fan_in, fan_out);
        self.born(data, std, role, fan_in, fan_out)
    }

    /// A linear layer, with the bias that the scheme has.
    pub(crate) fn linear(&mut self, path: &str, role: Role, fan_in: usize, fan_out: usize, bias: bool) -> Linear {
        let (data, std) = self.draw(&format!("{path}.weight"), role, fan_in, fan_out);
        let norm = self.weight_norm(&data, role, fan_out);
        let weight = self.born(data, std, role, fan_in, fan_out);
        let bias = bias.then(|| self.bias(path, role, fan_in, fan_out));
        let Factors { forward, backward, .. } = self.factors(role, fan_in, fan_out);
        Linear { weight, bias, norm, multiplier: forward, backward: forward * backward }
    }

    /// The bias of the layer at `path`, whose weight has this role and these fans.
    pub(crate) fn bias(&mut self, path: &str, role: Role, fan_in: usize, fan_out: usize) -> Param<Tensor<1>> {
        // Its size must not depend on the width.
        let base = self.config.parametrization.base_spec(&self.spec(role, fan_in, fan_out), self.config.d_model);
        let start = match role {
            Role::Head if self.config.zero_readout => Distribution::Constant(0.0),
            _ => self.scheme.bias(&base),
        };
        let values = start.draw(self.seed, &format!("{path}.bias"), 1, fan_out);
        let param = Param::from_data(TensorData::new(values, [fan_out]), self.device);
        let spec = self.spec(Role::Bias, 1, fan_out);
        self.births.insert(param.id, Birth { spec, block: self.block, init_std: start.rms(1.0), lr: 1.0 });
        param
    }

    /// The numbers of a matrix and the root of their mean square, as the distribution has it where there is one.
    fn draw(&self, path: &str, role: Role, fan_in: usize, fan_out: usize) -> (Vec<f32>, f64) {
        let spec = self.spec(role, fan_in, fan_out);
        let factors = self.factors(role, fan_in, fan_out);
        let base = self.config.parametrization.base_spec(&spec, self.config.d_model);
        let draw = self.scheme.draw(&base);
        // A matrix whose size follows from its own shape has shrunk with the width already.
        let shrunk = if draw.has_own_size() { (spec.fan_in / base.fan_in).sqrt() } else { 1.0 };
        let draw = match self.starts_at_zero(role) {
            Some(Zero::Weight) => Draw::Entries(Distribution::Constant(0.0)),
            // Its size is divided out, so far as it is large against eps.
            _ if self.standardized(role) => Draw::Entries(Distribution::Normal { std: (fan_in as f64).powf(-0.5) }),
            _ => draw.scaled(factors.init * self.gain(role) * shrunk),
        };
        let values = draw.matrix(self.seed, path, fan_in, fan_out, self.config.n_heads);
        let square = |x: &f32| f64::from(*x) * f64::from(*x);
        let rms = match draw {
            Draw::Entries(distribution) => distribution.rms(fan_in as f64),
            _ => (values.iter().map(square).sum::<f64>() / values.len() as f64).sqrt(),
        };
        (values, rms)
    }

    fn born(&mut self, data: Vec<f32>, std: f64, role: Role, fan_in: usize, fan_out: usize) -> Param<Tensor<2>> {
        let param = Param::from_data(TensorData::new(data, [fan_in, fan_out]), self.device);
        let spec = self.spec(role, fan_in, fan_out);
        self.births.insert(param.id, Birth { spec, block: self.block, init_std: std, lr: 1.0 });
        param
    }

    /// The norm of the weight of a block's linear layer.
    fn weight_norm(&mut self, weight: &[f32], role: Role, fan_out: usize) -> WeightNorm {
        let config = if role.is_hidden() { self.config.weight_norm } else { WeightNormConfig::None {} };
        // What standardization divides out of the weight has to come from its gain.
        let gain = if self.starts_at_zero(role) == Some(Zero::WeightGain) { 0.0 } else { self.gain(role) };
        let reads_activation = |layer| {
            let axes = self.config.axes(layer, Branch::Mlp);
            role == Role::MlpOut && (axes.norm.is_none() || !axes.placement.inner_norm(Branch::Mlp))
        };
        let gamma = if self.block.is_some_and(reads_activation) { self.config.activation.gain() } else { 1.0 };
        let norm = config.build(weight, fan_out, gamma, gain, self.device);
        self.adopt(&norm, Role::Norm);
        norm
    }

    /// Whether the size of a weight of this role is divided out.
    fn standardized(&self, role: Role) -> bool {
        role.is_hidden() && self.config.weight_norm.divides_by_size()
    }

    /// What starts at 0 in the branch that a weight writes, if anything.
    fn starts_at_zero(&self, role: Role) -> Option<Zero> {
        let branch = match role {
            Role::AttentionOutput => Branch::Attention,
            Role::MlpOut => Branch::Mlp,
            Role::Query => return self.config.zero_query.then_some(Zero::Weight),
            Role::Head => return self.config.zero_readout.then_some(Zero::Weight),
            _ => return None,
        };
        let behind = |layer| self.config.axes(layer, branch).has_norm_at(Position::AfterBranch);
        // What a scheme draws as 0 would be drawn anew where its size is divided out.
        match self.config.zero_writers || (self.scheme.zeroes_writers() && self.standardized(role)) {
            false => None,
            true if self.block.is_some_and(behind) => Some(Zero::NormGain),
            true if self.config.weight_norm.divides_by_size() => Some(Zero::WeightGain),
            true => Some(Zero::Weight),
        }
    }

    /// A vector of equal numbers.
    pub(crate) fn constant(&mut self, value: f64, size: usize, role: Role) -> Param<Tensor<1>> {
        let param = Param::from_tensor(Tensor::full([size], value, self.device));
        self.adopt(&param, role);
        param
    }

    /// A learned number, of shape `[1]`, with a learning rate of its own.
    pub(crate) fn scalar(&mut self, value: f64, lr: f64) -> Param<Tensor<1>> {
        let param = Param::from_tensor(Tensor::full([1], value, self.device));
        self.adopt_at(&param, Role::Scale, lr);
        param
    }

    /// The parametrization's factors of a matrix, whatever the optimizer.
    pub(crate) fn factors(&self, role: Role, fan_in: usize, fan_out: usize) -> Factors {
        let spec = self.spec(role, fan_in, fan_out);
        self.config.parametrization.factors(&spec, self.config.shape(), Update::Normalized)
    }

    /// A norm of a last axis of `width` entries.
    pub(crate) fn norm(&mut self, config: &NormConfig, width: usize, role: Role) -> Norm {
        let norm = config.build(NormSite::inside(width, self.base_width()), self.device);
        self.adopt_norm(&norm, role);
        norm
    }

    /// The norms of queries and keys: a gain of all heads together grows with the width.
    pub(crate) fn adopt_qk_norm(&mut self, module: &QkNorm, over: QkNormOver) {
        let role = match over {
            QkNormOver::Head => Role::QkNorm,
            QkNormOver::Width => Role::Norm,
        };
        module.norms().into_iter().for_each(|norm| self.adopt_norm(norm, role));
        self.adopt(module, if module.scales_each_head() { Role::HeadScale } else { Role::QkNorm });
    }

    fn adopt_norm(&mut self, norm: &Norm, role: Role) {
        for id in norm.statistics() {
            let spec = self.spec(Role::Statistic, 1, 1);
            self.births.insert(id, Birth { spec, block: self.block, init_std: 0.0, lr: 1.0 });
        }
        self.adopt(norm, role);
    }

    /// The residual connection of one branch of the block that is being built.
    pub(crate) fn residual(&mut self, axes: BranchAxes) -> Residual {
        let site = Site {
            layer: self.block.unwrap_or(0),
            layers: self.config.n_layers,
            width: self.config.d_model,
            base_width: self.base_width(),
            joint: self.joint(axes.branch),
            branch: axes.branch,
        };
        let mut residual = Residual::new(axes.placement, &axes.norm, axes.scale, site, self.device);
        if self.config.zero_writers {
            residual.zero_last_gain();
        }
        residual.norms().iter().for_each(|norm| self.adopt_norm(norm, Role::Norm));
        self.adopt_at(&residual, Role::Scale, axes.scale.lr_factor());
        residual
    }

    fn base_width(&self) -> usize {
        self.config.parametrization.base_width(self.config.d_model)
    }

    /// How the parametrization joins a branch of the block that is being built.
    fn joint(&self, branch: Branch) -> Joint {
        let (parametrization, layers) = (self.config.parametrization, self.config.n_layers);
        match parametrization.unit_scaling() {
            Some(unit) => {
                let tau = unit.tau(2 * self.block.unwrap_or(0) + branch as usize, layers);
                Joint { gain: tau, after: (1.0 + tau * tau).powf(-0.5), delayed: true }
            }
            None => Joint::of(parametrization.branch_multiplier(layers)),
        }
    }

    /// Walks the finished model.
    pub(crate) fn table<M: Module>(self, model: &M) -> ParamTable {
        ParamTable::new(model, self.births, self.config.parametrization, self.config.shape())
    }

    /// Notes the role of those parameters of `module` that have none yet; they start as constants.
    fn adopt<M: Module>(&mut self, module: &M, role: Role) {
        self.adopt_at(module, role, 1.0);
    }

    /// [`Nursery::adopt`], with a learning rate of its own.
    fn adopt_at<M: Module>(&mut self, module: &M, role: Role, lr: f64) {
        let (block, layers, width) = (self.block, self.config.n_layers, self.config.d_model as f64);
        let births = &mut self.births;
        module.visit(&mut Walk::new(|_: &str, id: ParamId, shape: Vec<usize>| {
            let fan_out = shape.iter().product::<usize>() as f64;
            let spec = Spec { role, fan_in: 1.0, fan_out, layers, layer: block, width };
            births.entry(id).or_insert(Birth { spec, block, init_std: 0.0, lr });
        }));
    }

    fn spec(&self, role: Role, fan_in: usize, fan_out: usize) -> Spec {
        Spec {
            role,
            fan_in: fan_in as f64,
            fan_out: fan_out as f64,
            layers: self.config.n_layers,
            layer: self.block,
            width: self.config.d_model as f64,
        }
    }

    /// The gain that the placement of the branch asks for.
    fn gain(&self, role: Role) -> f64 {
        let branch = match role {
            Role::Value | Role::AttentionOutput => Branch::Attention,
            Role::MlpIn | Role::MlpOut => Branch::Mlp,
            _ => return 1.0,
        };
        let gain = |layer| self.config.axes(layer, branch).placement.branch_gain(self.config.n_layers);
        self.block.map_or(1.0, gain)
    }
}
