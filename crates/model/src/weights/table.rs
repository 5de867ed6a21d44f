use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use std::collections::HashMap;
use unitgain_init::{Role, Spec};
use unitgain_mup::{Factors, Parametrization, Shape, Update};

/// The properties of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamEntry {
    /// Path in the model, such as `blocks.0.attention.query.weight`.
    pub path: String,
    /// Role, fans and depth.
    pub spec: Spec,
    /// Shape; linear weights are `[fan_in, fan_out]`.
    pub shape: Vec<usize>,
    /// Standard deviation at init; 0 for constants and loaded weights.
    pub init_std: f64,
    /// Dependence of the optimizer step on the size of the gradient.
    pub update: Update,
    /// Factors of the parametrization for that update, including `lr`.
    pub factors: Factors,
    /// Factor of the learning rate beside the parametrization: 1 except for Fixup's scalars.
    pub lr: f64,
}

impl ParamEntry {
    /// Purpose of the parameter.
    pub fn role(&self) -> Role {
        self.spec.role
    }

    /// Index of the block; None outside the blocks.
    pub fn block(&self) -> Option<usize> {
        self.spec.block
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// All parameters and running statistics of a model, in the order of a module visitor. They are identified by path, because
/// ids change on load.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamTable {
    entries: Vec<ParamEntry>,
    parametrization: Parametrization,
    shape: Shape,
}

/// The record of a parameter from its creation by a builder.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) spec: Spec,
    pub(super) init_std: f64,
    pub(super) lr: f64,
    /// The path with which it was made, if any.
    pub(super) path: Option<String>,
}

impl ParamTable {
    /// Makes the table of a model from the records of its parameters.
    ///
    /// # Panics
    /// If a parameter has no record, or another path or block than its record, which are bugs in the code of the model.
    pub(super) fn new<M: Module>(
        model: &M,
        mut records: HashMap<ParamId, Record>,
        parametrization: Parametrization,
        shape: Shape,
    ) -> Self {
        let mut entries = Vec::new();
        model.visit(&mut Walk::new(|path: &str, id: ParamId, dims: Vec<usize>| {
            let record =
                records.remove(&id).unwrap_or_else(|| panic!("{path} is no weight of this builder, or is met twice"));
            if let Some(given) = record.path.filter(|given| given != path) {
                panic!("the weight at {path} was made as {given}: build it within the names of the fields it is in");
            }
            // A weight of a block has other factors than one outside.
            let mut parts = path.split('.').skip_while(|part| *part != "blocks");
            let block = parts.nth(1).and_then(|part| part.parse::<usize>().ok());
            assert!(block == record.spec.block, "{path} was not made by `Builder::within_block` for its block");
            entries.push(ParamEntry {
                path: path.to_string(),
                factors: factors(parametrization, &record.spec, record.lr, shape, Update::Normalized),
                update: Update::Normalized,
                lr: record.lr,
                spec: record.spec,
                shape: dims,
                init_std: record.init_std,
            });
        }));
        assert!(records.is_empty(), "{} weights were made and are not in the model", records.len());
        Self { entries, parametrization, shape }
    }

    /// The table for the update that `of` returns for each weight; a new table is for [`Update::Normalized`].
    pub fn for_updates(mut self, of: impl Fn(&ParamEntry) -> Update) -> Self {
        for entry in &mut self.entries {
            entry.update = of(entry);
            entry.factors = factors(self.parametrization, &entry.spec, entry.lr, self.shape, entry.update);
        }
        self
    }

    /// The parametrization of the factors, with defaults filled in.
    pub fn parametrization(&self) -> Parametrization {
        self.parametrization
    }

    /// The entries in order.
    pub fn iter(&self) -> std::slice::Iter<'_, ParamEntry> {
        self.entries.iter()
    }

    /// The entries in order, as a slice.
    pub fn entries(&self) -> &[ParamEntry] {
        &self.entries
    }

    /// Number of trainable elements.
    pub fn elements(&self) -> usize {
        self.iter().filter(|entry| entry.role().is_trainable()).map(ParamEntry::elements).sum()
    }
}

fn factors(parametrization: Parametrization, spec: &Spec, lr: f64, shape: Shape, update: Update) -> Factors {
    let factors = parametrization.factors(spec, shape, update);
    Factors { lr: factors.lr * lr, ..factors }
}

impl<'a> IntoIterator for &'a ParamTable {
    type Item = &'a ParamEntry;
    type IntoIter = std::slice::Iter<'a, ParamEntry>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A visitor that tracks the path of each parameter, because burn's derive never calls the visits with a path.
pub struct Walk<F> {
    path: Vec<String>,
    visit: F,
}

impl<F: FnMut(&str, ParamId, Vec<usize>)> Walk<F> {
    /// A visitor that calls `visit` with the path, id and shape of every float parameter.
    pub fn new(visit: F) -> Self {
        Self { path: Vec::new(), visit }
    }
}

impl<F: FnMut(&str, ParamId, Vec<usize>)> ModuleVisitor for Walk<F> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_string());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        (self.visit)(&self.path.join("."), param.id, param.lazy_shape().to_vec());
    }
}
