use crate::{About, affine, centred, in_f32, scaled_eps};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

pub(crate) const ABOUT: About = About::of((
    "group_norm",
    "as layer_norm within each of `groups` parts of the row, with over_time also over the sequence",
    "arXiv:1803.08494 eq. 7",
));
pub(crate) const ABOUT_INSTANCE: About = About::of((
    "instance_norm",
    "gamma * (x - mean) / sqrt(var + eps) + beta, of a channel over its sequence",
    "arXiv:1607.08022",
));

pub(crate) fn default_eps() -> f64 {
    1e-5
}

/// The 32 of the paper is for hundreds of channels.
pub(crate) fn default_groups() -> usize {
    4
}

/// GroupNorm (arXiv:1803.08494, eq. 7), with gain and bias per channel. Over time and with one group per channel it is
/// InstanceNorm (arXiv:1607.08022); with one group and not over time it is LayerNorm.
#[derive(Module, Debug)]
pub struct GroupNorm {
    gamma: Option<Param<Tensor<1>>>,
    beta: Option<Param<Tensor<1>>>,
    groups: usize,
    over_time: bool,
    eps: f64,
}

impl GroupNorm {
    /// With `affine`, `gamma` = 1 and `beta` = 0, both of shape `[width]`. `groups` must divide `width`.
    pub fn new(width: usize, groups: usize, over_time: bool, eps: f64, affine: bool, device: &Device) -> Self {
        Self {
            gamma: affine.then(|| Param::from_tensor(Tensor::ones([width], device))),
            beta: affine.then(|| Param::from_tensor(Tensor::zeros([width], device))),
            groups,
            over_time,
            eps,
        }
    }

    pub(crate) fn gain(&mut self) -> Option<&mut Param<Tensor<1>>> {
        self.gamma.as_mut()
    }

    /// Normalizes `x`, `[.., width]`: the rows of `sequences` sequences in order.
    pub fn forward<const D: usize>(&self, x: Tensor<D>, sequences: usize) -> Tensor<D> {
        let shape = x.dims();
        let (width, rows) = (shape[D - 1], shape[..D - 1].iter().product::<usize>());
        let sequences = if self.over_time { sequences } else { rows };
        in_f32(x, |x| {
            let x = x.reshape([sequences, rows / sequences, self.groups, width / self.groups]);
            let mean = |x: Tensor<4>| x.mean_dim(3).mean_dim(1);
            let centred = centred(x, mean);
            let var = mean(centred.clone().square());
            let y = (centred / (var + scaled_eps(self.eps)).sqrt()).reshape(shape);
            affine(y, self.gamma.as_ref(), self.beta.as_ref())
        })
    }
}
