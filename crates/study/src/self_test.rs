//! Self-test of a device against the CPU. A faulty driver can be wrong without an error; models then train with a
//! constant loss.

use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Int, Tensor, TensorData, activation, module};
use std::path::PathBuf;
use unitgain_init::sample;
use unitgain_model::{ModelConfig, NormConfig, cross_entropy};
use unitgain_norms::NormSite;
use unitgain_train::device;
use unitgain_train::folder::files::{HASH_START, hash, write_atomically};
use unitgain_train::{ClipConfig, DataConfig, Error, OptimizerConfig, Trainer, read_rows};

/// Result of one operation on the device.
#[derive(Clone, Debug)]
pub struct Check {
    /// The operation, forward and backward.
    pub operation: &'static str,
    /// Maximum difference from the CPU over output and gradients, relative to the CPU's maximum absolute value (at
    /// least 1); or the reason why it could not be compared.
    pub difference: Result<f32, String>,
}

/// Maximum difference: above any rounding error, below any fault seen.
const ALLOWED: f32 = 2e-3;

impl Check {
    /// Whether the results agree up to rounding.
    pub fn passed(&self) -> bool {
        matches!(self.difference, Ok(difference) if difference <= ALLOWED)
    }
}

/// Output and gradients of an operation; an error if one is missing.
type Parts = Result<Vec<Vec<f32>>, String>;

type Operation = (&'static str, fn(&Device) -> Parts);

const OPERATIONS: [Operation; 7] = [
    ("matrix product", matrix_product),
    ("softmax", softmax),
    ("norm", norm),
    ("attention", attention),
    ("embedding gather and scatter", embedding),
    ("cross-entropy", loss),
    ("training step", training_step),
];

/// Compares every operation on a plain device with `reference`.
pub fn run(device: &Device, reference: &Device, on_check: &mut dyn FnMut(&Check)) -> Vec<Check> {
    OPERATIONS
        .iter()
        .map(|(operation, f)| {
            let check = Check { operation, difference: compared(*f, device, reference) };
            on_check(&check);
            check
        })
        .collect()
}

/// Tests a backend by name, unless this device, driver and version have passed before. The CPU's own backend is not
/// tested.
///
/// # Errors
/// [`Error::Device`] with the operations that failed.
pub fn ensure(name: &str, on_check: &mut dyn FnMut(&Check)) -> Result<(), Error> {
    if name == "flex" {
        return Ok(());
    }
    let device = device::from_name(name)?;
    let Ok(reference) = device::from_name("flex") else {
        tracing::warn!("this build has no flex, with which {name} could be compared");
        return Ok(());
    };
    let known = cache().map(|folder| folder.join(format!("{:016x}", identity(name, &device))));
    if known.as_ref().is_some_and(|file| file.exists()) {
        return Ok(());
    }
    let checks = run(&device, &reference, on_check);
    let failed: Vec<String> = checks
        .iter()
        .filter(|check| !check.passed())
        .map(|check| match &check.difference {
            Ok(difference) => format!("{} differs from the CPU by {difference:.1e}", check.operation),
            Err(problem) => format!("{}: {problem}", check.operation),
        })
        .collect();
    if failed.is_empty() {
        // Without a writable cache the next run repeats the test, which takes a few seconds.
        if let Some(file) = known {
            let _ = file.parent().map(std::fs::create_dir_all);
            let _ = write_atomically(&file, name.as_bytes());
        }
        return Ok(());
    }
    let problem = format!(
        "its self-test failed: {}. Differences up to {ALLOWED:.0e} are allowed. Update its driver or use another \
         backend; --skip-self-test skips the test",
        failed.join("; ")
    );
    Err(Error::Device { name: name.into(), problem })
}

/// Hash of the device, its driver and this version.
fn identity(name: &str, device: &Device) -> u64 {
    let text = format!(
        "{name} {:?} {} {}",
        device::Found::of(name, device),
        unitgain_train::VERSION,
        unitgain_train::BURN_VERSION
    );
    hash(HASH_START, text.as_bytes())
}

/// The folder of passed devices; None without a home folder.
fn cache() -> Option<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cache"),
    };
    Some(base.join("unitgain/self-test"))
}

fn compared(f: fn(&Device) -> Parts, device: &Device, reference: &Device) -> Result<f32, String> {
    let want = device::guarded(|| f(reference)).flatten().map_err(|problem| format!("on the CPU: {problem}"))?;
    let got = device::guarded(|| f(device)).flatten()?;
    if got.len() != want.len() || want.is_empty() {
        return Err(format!("gives {} outputs and gradients instead of {}", got.len(), want.len()));
    }
    got.iter().zip(&want).try_fold(0f32, |largest, (got, want)| Ok(largest.max(difference(got, want)?)))
}

/// Maximum relative difference; an error if either side is empty or all zeros.
fn difference(got: &[f32], want: &[f32]) -> Result<f32, String> {
    if got.len() != want.len() {
        return Err(format!("gives {} numbers instead of {}", got.len(), want.len()));
    }
    if let Some(no_number) = got.iter().find(|v| !v.is_finite()) {
        return Err(format!("gives {no_number}"));
    }
    if let Some(no_number) = want.iter().find(|v| !v.is_finite()) {
        return Err(format!("cannot be compared, as the CPU gives {no_number}"));
    }
    for (who, values) in [("the CPU", want), ("it", got)] {
        if values.iter().all(|v| *v == 0.0) {
            return Err(format!("cannot be compared, because {who} gives only zeros"));
        }
    }
    let size = want.iter().fold(1f32, |size, v| size.max(v.abs()));
    Ok(got.iter().zip(want).fold(0f32, |largest, (got, want)| largest.max((got - want).abs() / size)))
}

fn draw<const D: usize>(path: &str, shape: [usize; D], device: &Device) -> Tensor<D> {
    let values = sample::normal(1, &format!("self-test/{path}"), shape.iter().product(), 1.0);
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

/// The result of `f` on standard normal inputs, and the gradient of each.
fn both<const D: usize, const I: usize>(
    shapes: [[usize; D]; I],
    device: &Device,
    f: impl Fn([Tensor<D>; I]) -> Tensor<D>,
) -> Parts {
    let device = device.clone().autodiff();
    let mut index = 0;
    let inputs = shapes.map(|shape| {
        index += 1;
        draw(&index.to_string(), shape, &device).require_grad()
    });
    let y = f(inputs.clone());
    let gradients = (y.clone() * draw("weights", y.dims(), &device)).sum().backward();
    let gradients = inputs.into_iter().map(|input| gradient(input.grad(&gradients)));
    std::iter::once(Ok(host(y))).chain(gradients).collect()
}

fn gradient<const D: usize>(gradient: Option<Tensor<D>>) -> Result<Vec<f32>, String> {
    gradient.map(host).ok_or_else(|| "has no gradient".into())
}

fn matrix_product(device: &Device) -> Parts {
    let plain = both([[65, 130], [130, 67]], device, |[a, b]| a.matmul(b))?;
    let turned = both([[65, 130], [67, 130]], device, |[a, b]| a.matmul(b.transpose()))?;
    Ok([plain, turned].concat())
}

fn softmax(device: &Device) -> Parts {
    both([[33, 65]], device, |[x]| activation::softmax(x, 1))
}

fn norm(device: &Device) -> Parts {
    let of = |config: NormConfig| {
        let norm = config.build(NormSite::of(65), &device.clone().autodiff());
        both([[33, 65]], device, |[x]| norm.forward(x))
    };
    Ok([of(NormConfig::layer_norm())?, of(NormConfig::rms_norm())?].concat())
}

fn attention(device: &Device) -> Parts {
    let options = || AttentionModuleOptions { scale: Some(0.3), softcap: None, is_causal: true };
    both([[2, 3, 17, 8]; 3], device, |[q, k, v]| module::attention(q, k, v, None, None, options()))
}

fn embedding(device: &Device) -> Parts {
    let indices: Vec<i32> = (0..34).map(|i| i * i % 11).collect();
    let indices = Tensor::<2, Int>::from_data(TensorData::new(indices, [2, 17]), &device.clone().autodiff());
    both([[11, 24]], device, |[table]| module::embedding(table, indices.clone()).reshape([34, 24]))
}

fn loss(device: &Device) -> Parts {
    let device = device.clone().autodiff();
    let targets: Vec<i32> = (0..34).map(|i| i * i % 13).collect();
    let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [2, 17]), &device);
    let logits = draw("logits", [2, 17, 13], &device).require_grad();
    let loss = cross_entropy(logits.clone(), targets, None);
    let gradient = gradient(logits.grad(&loss.backward()))?;
    Ok(vec![host(loss), gradient])
}

/// Losses and gradient norms of three steps; the later steps depend on the optimizer.
fn training_step(device: &Device) -> Parts {
    let model = ModelConfig {
        vocab_size: Some(8),
        context: 16,
        d_model: 16,
        n_layers: 2,
        n_heads: 2,
        ..ModelConfig::default()
    };
    let data = DataConfig::Markov { vocab_size: 8, order: 1, branching: 2, seed: 1 };
    let mut trainer = Trainer::new(&model, OptimizerConfig::default(), ClipConfig::default(), 1, device)
        .map_err(|e| format!("does not run: {e}"))?;
    let task = data.load(16).map_err(|e| format!("does not run: {e}"))?;
    let mut rows = Vec::new();
    for step in 0..3 {
        let (next, row) = trainer.step(&[task.batch(1, step, 0..4)], 1e-2, true);
        trainer = next;
        rows.push(row);
    }
    Ok(read_rows(&rows).into_iter().map(|row| [vec![row.loss, row.grad_norm()], row.stream_rms].concat()).collect())
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_computes_passes_and_one_that_does_not_is_named() {
        let flex = Device::flex();
        assert!(run(&flex, &flex, &mut |_| ()).iter().all(Check::passed));
        let check = |difference| Check { operation: "softmax", difference };
        assert!(check(Ok(1e-4)).passed() && !check(Ok(0.1)).passed() && !check(Err("stopped".into())).passed());
        assert!(difference(&[1.0, f32::NAN], &[1.0, 2.0]).is_err());
        assert!(difference(&[1.0], &[1.0, 2.0]).is_err());
        assert_eq!(difference(&[1.0, 5.0], &[1.0, 4.0]), Ok(0.25));
    }

    /// Empty or zero results must not pass as equal.
    #[test]
    fn an_operation_that_did_not_happen_does_not_pass() {
        const NO: f32 = f32::NAN;
        for (got, want) in [
            (&[][..], &[][..]),
            (&[0.0, 0.0], &[0.0, 0.0]),
            (&[0.0, 0.0], &[0.001, 0.0]),
            (&[0.001, 0.0], &[0.0, 0.0]),
            (&[NO, 1.0], &[NO, 1.0]),
            (&[1.0, 1.0], &[NO, 1.0]),
            (&[f32::INFINITY], &[f32::INFINITY]),
            (&[1.0], &[f32::INFINITY]),
        ] {
            assert!(difference(got, want).is_err(), "{got:?} {want:?}");
        }
        let flex = Device::flex();
        let cases: [fn(&Device) -> Parts; 5] = [
            |_| Ok(Vec::new()),
            |_| Ok(vec![vec![1.0], Vec::new()]),
            |_| Ok(vec![vec![1.0], vec![0.0]]),
            |_| Err("has no gradient".into()),
            // No gradient: the output does not depend on the input.
            |device| both([[2, 3]], device, |[x]| x.detach()),
        ];
        for (i, case) in cases.into_iter().enumerate() {
            let check = Check { operation: "case", difference: compared(case, &flex, &flex) };
            assert!(!check.passed(), "{i}: {check:?}");
        }
        // All operations of the test have outputs and gradients that are neither empty nor zero.
        for (name, operation) in OPERATIONS {
            let parts = operation(&flex).unwrap();
            assert!(parts.len() > 1 && parts.iter().all(|part| difference(part, part) == Ok(0.0)), "{name}");
        }
    }
}
