//! Helpers of the tests.

pub(crate) mod golden;
pub(crate) mod keys;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use unitgain_init::sample;
use unitgain_model::weights::of as weights;

/// A temporary folder for one test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("unitgain-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Dropout draws from the device's global generator, so tests that use it take turns. A failed test leaves no invalid
/// state, so a poisoned lock is fine.
pub(crate) fn generator() -> MutexGuard<'static, ()> {
    static GENERATOR: Mutex<()> = Mutex::new(());
    GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of `compute`, computed once per key, for long runs that are compared with many numbers. The key must
/// contain everything that the result depends on.
pub(crate) fn memo<T: Clone + Send + 'static>(key: String, compute: impl FnOnce() -> T) -> T {
    static KNOWN: Mutex<BTreeMap<String, Box<dyn Any + Send>>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(value) = known().get(&key) {
        return value.downcast_ref::<T>().expect("one type a key").clone();
    }
    let value = compute();
    known().insert(key, Box::new(value.clone()));
    value
}

/// The values of one parameter.
pub(crate) fn values<M: Module>(model: &M, path: &str) -> Vec<f32> {
    let found = weights(model).into_iter().find(|(p, ..)| p == path);
    found.unwrap_or_else(|| panic!("{path} is not a parameter")).2
}

/// The number of elements of all parameters.
pub(crate) fn count_parameters<M: Module>(model: &M) -> usize {
    struct Count(usize);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 += param.lazy_shape().num_elements();
        }
    }
    let mut count = Count(0);
    model.visit(&mut count);
    count.0
}

/// Maximum absolute difference; NaN if any is NaN. Fails for empty slices.
pub(crate) fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(!a.is_empty(), "there is nothing to differ");
    let largest = |largest: f32, difference: f32| {
        assert!(!difference.is_nan(), "a difference is not a number");
        largest.max(difference)
    };
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, largest)
}

/// The gradient of each parameter that has one, by path.
pub(crate) fn parameter_gradients<M: Module>(module: &M, gradients: &Gradients) -> Vec<(String, Vec<f32>)> {
    struct Read<'a>(&'a Gradients, Vec<Option<Vec<f32>>>);
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.push(param.val().grad(self.0).map(|g| g.into_data().iter::<f32>().collect()));
        }
    }
    let mut read = Read(gradients, Vec::new());
    module.visit(&mut read);
    weights(module).into_iter().zip(read.1).filter_map(|((path, ..), gradient)| Some((path, gradient?))).collect()
}

/// Standard normal numbers that depend on the path only.
pub(crate) fn draw(path: &str, rows: usize, width: usize, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(sample::normal(1, path, rows * width, 1.0), [rows, width]), device)
}

/// The numbers of a tensor.
pub(crate) fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

/// A copy whose gains and biases differ from 1 and 0, equal in all modules of the same shapes.
pub(crate) fn shaken<M: Module>(module: M) -> M {
    struct Shake(usize);
    impl ModuleMapper for Shake {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1;
            let (id, tensor, mapper) = param.consume();
            let shape = tensor.shape();
            let noise = sample::normal(1, &format!("shake/{}", self.0), shape.num_elements(), 0.3);
            let noise = Tensor::<D>::from_data(TensorData::new(noise, shape), &tensor.device());
            let device = tensor.device();
            let tensor = (tensor + noise).detach();
            Param::from_mapped_value(id, if device.is_autodiff() { tensor.require_grad() } else { tensor }, mapper)
        }
    }
    module.map(&mut Shake(0))
}

/// Whether the test device is a GPU, or a software implementation of one.
pub(crate) fn tests_a_gpu() -> bool {
    std::env::var("UNITGAIN_TEST_BACKEND").is_ok_and(|name| !unitgain_train::device::is_host(&name))
}

/// The device for comparisons with reference data: `UNITGAIN_TEST_BACKEND`, by default flex.
pub(crate) fn test_device() -> Device {
    match std::env::var("UNITGAIN_TEST_BACKEND") {
        Ok(name) => unitgain_train::device::from_name(&name).unwrap(),
        Err(_) => Device::flex(),
    }
}
