use burn::backend::Flex;
use burn::tensor::{DType, Int, Tensor};
use rayon::prelude::*;
use unitgain_kernels::threads::piece;
use unitgain_kernels::{FlexTensor, Fused, Native, contiguous, math, run, shape, simd, slice, tensor, zeros};

/// Mean cross-entropy of `logits`, `[rows, vocabulary]`, weighted if `weights`, `[rows]`, are given.
pub(crate) fn cross_entropy(
    logits: &Tensor<2>,
    targets: &Tensor<1, Int>,
    weights: Option<&Tensor<1>>,
) -> Option<Tensor<1>> {
    let logits = Native::of(logits)?;
    let targets = contiguous(targets.clone().try_into_primitive::<Flex>().ok().or_else(|| graph_int(targets))?);
    let targets = match targets.dtype() {
        DType::I32 => targets.as_slice::<i32>()?.to_vec(),
        DType::I64 => targets.as_slice::<i64>()?.iter().map(|t| *t as i32).collect(),
        _ => return None,
    };
    let weights = match weights {
        Some(weights) => {
            let weights = Native::of(weights)?.values();
            let total: f64 = slice(&weights).iter().map(|w| f64::from(*w)).sum();
            slice(&weights).iter().map(|w| (f64::from(*w) / total) as f32).collect()
        }
        None => vec![1.0 / targets.len() as f32; targets.len()],
    };
    Some(run(CrossEntropy { targets, weights }, [logits]))
}

fn graph_int(x: &Tensor<1, Int>) -> Option<FlexTensor> {
    x.clone().try_into_primitive::<burn::backend::Autodiff<Flex>>().ok()
}

#[derive(Clone, Debug)]
struct CrossEntropy {
    targets: Vec<i32>,
    /// Weights of the rows, whose sum is 1.
    weights: Vec<f32>,
}

simd! {
    fn rows(vocabulary: usize, logits: &[f32], targets: &[i32], weights: &[f32], gradient: &mut [f32]) -> f64 = rows_body
}

/// Returns the loss and writes weight (softmax - one hot) to `gradient`.
#[inline(always)]
fn rows_body<const F: bool>(
    vocabulary: usize,
    logits: &[f32],
    targets: &[i32],
    weights: &[f32],
    gradient: &mut [f32],
) -> f64 {
    let mut loss = 0f64;
    let each = logits.chunks_exact(vocabulary).zip(gradient.chunks_exact_mut(vocabulary)).zip(targets).zip(weights);
    for (((x, d), target), weight) in each {
        let largest = math::max(x);
        for (d, x) in d.iter_mut().zip(x) {
            *d = math::exp::<F>(x - largest);
        }
        let total = math::sum(d);
        let factor = weight / total;
        for d in d.iter_mut() {
            *d *= factor;
        }
        d[*target as usize] -= weight;
        loss += f64::from(*weight) * f64::from(total.ln() + largest - x[*target as usize]);
    }
    loss
}

impl Fused<1> for CrossEntropy {
    /// The gradient of the loss by the logits.
    type State = FlexTensor;

    fn forward(&self, [logits]: [FlexTensor; 1], keep: bool) -> (FlexTensor, Option<FlexTensor>) {
        let logits = contiguous(logits);
        let sizes = shape(&logits);
        let vocabulary = sizes[1];
        let in_range = self.targets.iter().all(|t| usize::try_from(*t).is_ok_and(|t| t < vocabulary));
        assert!(in_range && self.targets.len() == sizes[0], "a target is no token of the vocabulary of {vocabulary}");
        let mut gradient = zeros(slice(&logits).len());
        let n = piece(gradient.len(), vocabulary, 4);
        let losses: Vec<f64> = gradient
            .par_chunks_mut(n)
            .zip(slice(&logits).par_chunks(n))
            .zip(self.targets.par_chunks(n / vocabulary))
            .zip(self.weights.par_chunks(n / vocabulary))
            .map(|(((gradient, logits), targets), weights)| rows(vocabulary, logits, targets, weights, gradient))
            .collect();
        let loss = losses.iter().sum::<f64>() as f32;
        (tensor(vec![loss], &[1]), keep.then(|| tensor(gradient, &sizes)))
    }

    fn backward(&self, gradient: FlexTensor, dy: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        let factor = slice(&dy)[0];
        if factor == 1.0 {
            return [Some(gradient)];
        }
        let values = slice(&gradient).iter().map(|g| g * factor).collect();
        [Some(tensor(values, &shape(&gradient)))]
    }
}
