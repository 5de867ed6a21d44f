//! Values of weights by path.

use crate::error::ModelError;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::HashMap;

/// Shapes and values of tensors by path.
pub type Tensors = HashMap<String, (Vec<usize>, Vec<f32>)>;

/// Path, shape and values of every weight of a model.
pub fn of<M: Module>(model: &M) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    struct Read {
        path: Vec<String>,
        out: Vec<(String, Vec<usize>, Vec<f32>)>,
    }
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            self.out.push((self.path.join("."), tensor.dims().to_vec(), tensor.into_data().iter::<f32>().collect()));
        }
    }
    let mut read = Read { path: Vec::new(), out: Vec::new() };
    model.visit(&mut read);
    read.out
}

/// Assigns `values` to the weights of a model, which must have exactly these paths.
///
/// # Errors
/// [`ModelError::Weights`] names the paths that are missing, unknown, or of another shape.
pub fn assign<M: Module>(model: M, values: &Tensors) -> Result<M, ModelError> {
    struct Write<'a> {
        path: Vec<String>,
        values: &'a Tensors,
        used: usize,
        problems: Vec<String>,
    }
    impl ModuleMapper for Write<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let path = self.path.join(".");
            let Some((shape, values)) = self.values.get(&path) else {
                self.problems.push(format!("{path} is missing"));
                return param;
            };
            self.used += 1;
            let (id, tensor, mapper) = param.consume();
            if *shape != tensor.dims().to_vec() || values.len() != tensor.shape().num_elements() {
                let (n, own) = (values.len(), tensor.dims());
                self.problems.push(format!("{path} is {shape:?}, the model's is {own:?}, and it has {n} numbers"));
                return Param::from_mapped_value(id, tensor, mapper);
            }
            let device: Device = tensor.device();
            let value = Tensor::from_data(TensorData::new(values.clone(), tensor.shape()), &device);
            let value = if device.is_autodiff() { value.require_grad() } else { value };
            Param::from_mapped_value(id, value, mapper)
        }
    }
    let mut write = Write { path: Vec::new(), values, used: 0, problems: Vec::new() };
    let model = model.map(&mut write);
    let Write { used, mut problems, .. } = write;
    if used != values.len() {
        let known: Vec<String> = of(&model).into_iter().map(|(path, ..)| path).collect();
        let mut unknown: Vec<_> = values.keys().filter(|path| !known.contains(path)).collect();
        unknown.sort();
        problems.extend(unknown.into_iter().map(|path| format!("{path} is not in the model")));
    }
    if problems.is_empty() { Ok(model) } else { Err(ModelError::Weights { problems }) }
}
