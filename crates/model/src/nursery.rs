use crate::config::{BranchAxes, ModelConfig};
use crate::linear::Linear;
use crate::table::{Birth, ParamTable, Walk};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::HashMap;
use unitgain_init::{Role, Scheme, Spec, sample};
use unitgain_mup::Update;
use unitgain_norms::{Norm, NormConfig, NormSite};
use unitgain_residual::{Branch, Residual, Site};

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
        let spec = self.spec(role, fan_in, fan_out);
        let parametrization = self.config.parametrization;
        let factors = parametrization.factors(&spec, self.config.shape(), Update::Normalized);
        let std = self.scheme.std(&parametrization.base(&spec, self.config.d_model)) * factors.init * self.gain(role);
        let std = if self.config.zero_writers && role.writes_stream() { 0.0 } else { std };
        let data = sample::normal(self.seed, path, fan_in * fan_out, std);
        let param = Param::from_data(TensorData::new(data, [fan_in, fan_out]), self.device);
        self.births.insert(param.id, Birth { spec, block: self.block, init_std: std });
        param
    }

    /// A linear layer; its bias starts at 0.
    pub(crate) fn linear(&mut self, path: &str, role: Role, fan_in: usize, fan_out: usize, bias: bool) -> Linear {
        let weight = self.matrix(&format!("{path}.weight"), role, fan_in, fan_out);
        let bias = bias.then(|| Param::from_tensor(Tensor::<1>::zeros([fan_out], self.device)));
        if let Some(bias) = &bias {
            self.adopt(bias, Role::Bias);
        }
        Linear { weight, bias, multiplier: self.multiplier(role, fan_in, fan_out) }
    }

    /// The factor of a weight in the forward pass.
    pub(crate) fn multiplier(&self, role: Role, fan_in: usize, fan_out: usize) -> f64 {
        let spec = self.spec(role, fan_in, fan_out);
        self.config.parametrization.factors(&spec, self.config.shape(), Update::Normalized).forward
    }

    /// A norm of a last axis of `width` entries.
    pub(crate) fn norm(&mut self, config: &NormConfig, width: usize, role: Role) -> Norm {
        let norm = config.build(NormSite::of(width), self.device);
        self.adopt(&norm, role);
        norm
    }

    /// The residual connection of one branch of the block that is being built.
    pub(crate) fn residual(&mut self, axes: BranchAxes) -> Residual {
        let site = Site {
            layer: self.block.unwrap_or(0),
            layers: self.config.n_layers,
            width: self.config.d_model,
            gain: self.config.parametrization.branch_multiplier(self.config.n_layers),
            branch: axes.branch,
        };
        let residual = Residual::new(axes.placement, &axes.norm, axes.scale, site, self.device);
        residual.norms().iter().for_each(|norm| self.adopt(norm, Role::Norm));
        self.adopt(&residual, Role::Scale);
        residual
    }

    /// The learned scalar that both branches of a block share, 0 at the start, where their scale is one.
    pub(crate) fn shared_scale(&mut self, axes: BranchAxes) -> Option<Param<Tensor<1>>> {
        let scale = axes.scale.is_shared().then(|| Param::from_tensor(Tensor::zeros([1], self.device)));
        if let Some(scale) = &scale {
            self.adopt(scale, Role::Scale);
        }
        scale
    }

    /// Walks the finished model.
    pub(crate) fn table<M: Module>(self, model: &M) -> ParamTable {
        ParamTable::new(model, self.births, self.config.parametrization, self.config.shape())
    }

    /// Notes the role of those parameters of `module` that have none yet; they start as constants.
    fn adopt<M: Module>(&mut self, module: &M, role: Role) {
        let (block, layers) = (self.block, self.config.n_layers);
        let births = &mut self.births;
        module.visit(&mut Walk::new(|_: &str, id: ParamId, shape: Vec<usize>| {
            let spec = Spec { role, fan_in: 1.0, fan_out: shape.iter().product::<usize>() as f64, layers };
            births.entry(id).or_insert(Birth { spec, block, init_std: 0.0 });
        }));
    }

    fn spec(&self, role: Role, fan_in: usize, fan_out: usize) -> Spec {
        Spec { role, fan_in: fan_in as f64, fan_out: fan_out as f64, layers: self.config.n_layers }
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
