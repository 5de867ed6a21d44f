//! What the tests share.

pub(crate) mod golden;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use unitgain_train::checkpoint::weights;

/// A folder of its own for one test, removed at the end.
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

/// Dropout draws from the generator of the device, which is global: tests that use it take turns. One that
/// failed, or was meant to stop, leaves nothing that could be half done.
pub(crate) fn generator() -> MutexGuard<'static, ()> {
    static GENERATOR: Mutex<()> = Mutex::new(());
    GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The values of one parameter.
pub(crate) fn values<M: Module>(model: &M, path: &str) -> Vec<f32> {
    let found = weights(model).into_iter().find(|(p, ..)| p == path);
    found.unwrap_or_else(|| panic!("{path} is not a parameter")).2
}

/// Paths of the parameters in the order of a visit.
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

/// Largest absolute difference; a NaN is none.
pub(crate) fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = |largest: f32, difference: f32| {
        assert!(!difference.is_nan(), "a difference is not a number");
        largest.max(difference)
    };
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, largest)
}

/// The gradient of every parameter that has one, by path.
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
