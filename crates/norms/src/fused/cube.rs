//! Kernels of the GPU backends (CubeCL): one workgroup a row forward, some rows a workgroup backward.

// The macro's generated code is not documented.
#![allow(missing_docs)]

use crate::{SCALE, scaled_eps};
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Cube, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// As the composed twin; None on another backend or for another type than f32.
pub(super) fn norm<const D: usize>(
    x: &Tensor<D>,
    gamma: &Tensor<1>,
    beta: Option<&Tensor<1>>,
    eps: f64,
    centred: bool,
) -> Option<Tensor<D>> {
    if !unitgain_kernels::is_fused() || x.dtype() != DType::F32 {
        return None;
    }
    let norm = Norm { eps: scaled_eps(eps) as f32, centred };
    if let Ok(x) = x.clone().try_into_primitive::<Autodiff<Cube>>() {
        let gamma = gamma.clone().try_into_primitive::<Autodiff<Cube>>().ok()?;
        return Some(match beta {
            Some(beta) => norm.on_graph([x, gamma, beta.clone().try_into_primitive::<Autodiff<Cube>>().ok()?]),
            None => norm.on_graph([x, gamma]),
        });
    }
    let plain = |x: &Tensor<1>| x.clone().try_into_primitive::<Cube>().ok();
    let (x, gamma) = (x.clone().try_into_primitive::<Cube>().ok()?, plain(gamma)?);
    let beta = match beta {
        Some(beta) => Some(plain(beta)?),
        None => None,
    };
    Some(Tensor::from_primitive::<Cube>(norm.apply(x, gamma, beta).0))
}

#[derive(Clone, Copy, Debug)]
struct Norm {
    /// For scaled rows.
    eps: f32,
    centred: bool,
}

/// Input, gamma, and of each row its [`STATISTICS`].
type State = [FloatTensor<Cube>; 3];

/// Mean of the scaled row, what it lacks for being rounded, and 1 / std of the scaled row.
const STATISTICS: usize = 3;

impl Norm {
    fn apply(
        self,
        x: FloatTensor<Cube>,
        gamma: FloatTensor<Cube>,
        beta: Option<FloatTensor<Cube>>,
    ) -> (FloatTensor<Cube>, FloatTensor<Cube>) {
        let shifted = beta.is_some();
        // A kernel has all its buffers; without a shift this one is not read.
        let beta = beta.unwrap_or_else(|| gamma.clone());
        Cube::norm_forward(x, gamma, beta, self.eps, self.centred, shifted)
    }

    /// One node of the graph, of x, gamma and beta where there is one.
    fn on_graph<const N: usize, const D: usize>(self, inputs: [FloatTensor<Autodiff<Cube>>; N]) -> Tensor<D>
    where
        Self: Backward<Cube, N, State = State>,
    {
        let nodes = inputs.each_ref().map(|x| x.node());
        let mut inputs = inputs.into_iter().map(|x| x.into_primitive());
        let (Some(x), Some(gamma), beta) = (inputs.next(), inputs.next(), inputs.next()) else {
            unreachable!("a norm has an input and a gain")
        };
        let (y, statistics) = self.apply(x.clone(), gamma.clone(), beta);
        let y = match self.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish([x, gamma, statistics], y),
            OpsKind::UnTracked(prepared) => prepared.finish(y),
        };
        Tensor::from_primitive::<Autodiff<Cube>>(y)
    }

    fn gradients<const N: usize>(self, ops: Ops<State, N>, gradients: &mut Gradients) {
        let dy = gradients.consume::<Cube>(&ops.node);
        let [x, gamma, statistics] = ops.state;
        let (dx, dgamma, dbeta) = Cube::norm_backward(x, gamma, statistics, dy, self.centred);
        let width = dgamma.shape()[1];
        // The parts of the workgroups.
        let sum = |parts| Cube::float_reshape(Cube::float_sum_dim(parts, 0), Shape::new([width]));
        for (index, parent) in ops.parents.into_iter().enumerate() {
            let Some(parent) = parent else { continue };
            let gradient = match index {
                0 => dx.clone(),
                1 => sum(dgamma.clone()),
                _ => sum(dbeta.clone()),
            };
            gradients.register::<Cube>(parent.id, gradient);
        }
    }
}

impl Backward<Cube, 2> for Norm {
    type State = State;

    fn backward(self, ops: Ops<State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        self.gradients(ops, gradients);
    }
}

impl Backward<Cube, 3> for Norm {
    type State = State;

    fn backward(self, ops: Ops<State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        self.gradients(ops, gradients);
    }
}

/// What a GPU backend has to have; the attribute also makes it an operation that fusion can defer.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(crate) trait NormKernels: Backend {
    /// y, and the statistics `[rows, 3]`.
    #[fusion(meta = |x, _, _, _, _, _| (x.clone(), statistics_of(x)))]
    fn norm_forward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        eps: f32,
        centred: bool,
        shifted: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of x, and of gamma and beta the part of each workgroup, `[workgroups, width]`.
    #[fusion(meta = |x, gamma, _, _, _| (x.clone(), parts_of(x, gamma), parts_of(x, gamma)))]
    fn norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        centred: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;

#[cfg(feature = "fusion")]
fn statistics_of(x: &TensorSpec) -> TensorSpec {
    let width = x.shape[x.shape.num_dims() - 1];
    TensorSpec::new(Shape::new([x.shape.num_elements() / width, STATISTICS]), DType::F32)
}

#[cfg(feature = "fusion")]
fn parts_of(x: &TensorSpec, gamma: &TensorSpec) -> TensorSpec {
    let width = gamma.shape.num_elements();
    TensorSpec::new(Shape::new([workgroups(x.shape.num_elements() / width), width]), DType::F32)
}

/// Workgroups of the backward pass: each sums gamma's gradient over its rows.
fn workgroups(rows: usize) -> usize {
    rows.clamp(1, 256)
}

/// The most workgroups of a dispatch that every device has.
const MOST_GROUPS: usize = 65_535;

/// Units of a workgroup: a power of two.
fn units(x: &CubeTensor) -> usize {
    let most = x.client.properties().hardware.max_units_per_cube.clamp(1, 256);
    1 << most.ilog2()
}

impl NormKernels for CubeBackend {
    fn norm_forward(
        x: CubeTensor,
        gamma: CubeTensor,
        beta: CubeTensor,
        eps: f32,
        centred: bool,
        shifted: bool,
    ) -> (CubeTensor, CubeTensor) {
        let [x, gamma, beta] = [x, gamma, beta].map(into_contiguous);
        let rows = x.meta.num_elements() / gamma.meta.num_elements();
        let y = empty(&x, x.meta.shape().clone());
        let statistics = empty(&x, Shape::new([rows, STATISTICS]));
        if rows > 0 {
            let (client, units) = (x.client.clone(), units(&x));
            forward::launch(
                &client,
                CubeCount::new_1d(rows.min(MOST_GROUPS) as u32),
                CubeDim::new_1d(units as u32),
                x.into_buffer_arg(),
                gamma.into_buffer_arg(),
                beta.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                statistics.clone().into_buffer_arg(),
                eps,
                centred,
                shifted,
                units,
            );
        }
        (y, statistics)
    }

    fn norm_backward(
        x: CubeTensor,
        gamma: CubeTensor,
        statistics: CubeTensor,
        dy: CubeTensor,
        centred: bool,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let [x, gamma, statistics, dy] = [x, gamma, statistics, dy].map(into_contiguous);
        let width = gamma.meta.num_elements();
        let groups = workgroups(x.meta.num_elements() / width);
        let dx = empty(&x, x.meta.shape().clone());
        let [dgamma, dbeta] = [0, 1].map(|_| empty(&x, Shape::new([groups, width])));
        let (client, units) = (x.client.clone(), units(&x));
        backward::launch(
            &client,
            CubeCount::new_1d(groups as u32),
            CubeDim::new_1d(units as u32),
            x.into_buffer_arg(),
            gamma.into_buffer_arg(),
            statistics.into_buffer_arg(),
            dy.into_buffer_arg(),
            dx.clone().into_buffer_arg(),
            dgamma.clone().into_buffer_arg(),
            dbeta.clone().into_buffer_arg(),
            centred,
            units,
        );
        (dx, dgamma, dbeta)
    }
}

fn empty(like: &CubeTensor, shape: Shape) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, DType::F32)
}

const SCALE_F32: f32 = SCALE as f32;

/// The sum of the values of all units, in the order of a tree: the same every time.
#[cube]
fn total(scratch: &mut Shared<[f32]>, value: f32, #[comptime] units: usize) -> f32 {
    let unit = UNIT_POS as usize;
    // What another sum left there has been read by all.
    sync_cube();
    scratch[unit] = value;
    sync_cube();
    let steps = comptime!(units.ilog2());
    #[unroll]
    for step in 0..steps {
        let half = comptime!(units >> (step + 1));
        if unit < half {
            let other = scratch[unit + half];
            scratch[unit] += other;
        }
        sync_cube();
    }
    scratch[0]
}

#[cube(launch)]
#[allow(clippy::too_many_arguments)]
fn forward(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    y: &mut [f32],
    statistics: &mut [f32],
    eps: f32,
    #[comptime] centred: bool,
    #[comptime] shifted: bool,
    #[comptime] units: usize,
) {
    let mut scratch = Shared::<[f32]>::new_slice(units);
    let width = gamma.len();
    let rows = statistics.len() / STATISTICS;
    let unit = UNIT_POS as usize;
    for row in range_stepped(CUBE_POS, rows, CUBE_COUNT) {
        let start = row * width;
        let mut mean = 0.0f32;
        if centred {
            let mut sum = 0.0f32;
            for i in range_stepped(unit, width, units) {
                sum += x[start + i] * SCALE_F32;
            }
            mean = total(&mut scratch, sum, units) / width as f32;
        }
        let mut rest = 0.0f32;
        if centred {
            let mut sum = 0.0f32;
            for i in range_stepped(unit, width, units) {
                sum += x[start + i] * SCALE_F32 - mean;
            }
            rest = total(&mut scratch, sum, units) / width as f32;
        }
        let mut squares = 0.0f32;
        for i in range_stepped(unit, width, units) {
            let v = x[start + i] * SCALE_F32 - mean - rest;
            squares += v * v;
        }
        let mean_square = total(&mut scratch, squares, units) / width as f32;
        let inverse = 1.0f32 / (mean_square + eps).sqrt();
        for i in range_stepped(unit, width, units) {
            let v = (x[start + i] * SCALE_F32 - mean - rest) * inverse * gamma[i];
            if shifted {
                y[start + i] = v + beta[i];
            } else {
                y[start + i] = v;
            }
        }
        if unit == 0 {
            statistics[STATISTICS * row] = mean;
            statistics[STATISTICS * row + 1] = rest;
            statistics[STATISTICS * row + 2] = inverse;
        }
    }
}

/// With h the normalized row and g = gamma dy: `dx = (g - mean(g) - h mean(g h)) / std`, `dgamma += dy h`,
/// `dbeta += dy`. A unit has the same columns in every row, so that no two write one sum.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
fn backward(
    x: &[f32],
    gamma: &[f32],
    statistics: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    dgamma: &mut [f32],
    dbeta: &mut [f32],
    #[comptime] centred: bool,
    #[comptime] units: usize,
) {
    let mut scratch = Shared::<[f32]>::new_slice(units);
    let width = gamma.len();
    let rows = statistics.len() / STATISTICS;
    let unit = UNIT_POS as usize;
    let own = CUBE_POS * width;
    for i in range_stepped(unit, width, units) {
        dgamma[own + i] = 0.0f32;
        dbeta[own + i] = 0.0f32;
    }
    for row in range_stepped(CUBE_POS, rows, CUBE_COUNT) {
        let start = row * width;
        let mean = statistics[STATISTICS * row];
        let rest = statistics[STATISTICS * row + 1];
        let inverse = statistics[STATISTICS * row + 2];
        let mut sum = 0.0f32;
        let mut product = 0.0f32;
        for i in range_stepped(unit, width, units) {
            let h = (x[start + i] * SCALE_F32 - mean - rest) * inverse;
            let d = dy[start + i];
            sum += d * gamma[i];
            product += d * gamma[i] * h;
            dgamma[own + i] += d * h;
            dbeta[own + i] += d;
        }
        let mut of_mean = 0.0f32;
        if centred {
            of_mean = total(&mut scratch, sum, units) / width as f32;
        }
        let of_size = total(&mut scratch, product, units) / width as f32;
        for i in range_stepped(unit, width, units) {
            let h = (x[start + i] * SCALE_F32 - mean - rest) * inverse;
            dx[start + i] = inverse * SCALE_F32 * (dy[start + i] * gamma[i] - of_mean - h * of_size);
        }
    }
}
