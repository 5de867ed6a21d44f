use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use std::collections::HashMap;
use unitgain_init::{Role, Spec};
use unitgain_mup::{Factors, Parametrization, Shape, Update};

/// What is known of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamEntry {
    /// Where it is in the model: `blocks.0.attention.query.weight`.
    pub path: String,
    /// What it is for, its fans and the depth of the model.
    pub spec: Spec,
    /// Its block, for a parameter inside one.
    pub block: Option<usize>,
    /// Its shape; linear weights are `[fan_in, fan_out]`.
    pub shape: Vec<usize>,
    /// Standard deviation that it was drawn with; 0 for constants and for weights that were loaded.
    pub init_std: f64,
    /// How the optimizer's step of it depends on the size of the gradient.
    pub update: Update,
    /// The parametrization's factors for that update, with `lr`.
    pub factors: Factors,
    /// Learning rate that the parameter asks for itself, over that of the optimizer: 1 but for Fixup's scalars.
    pub lr: f64,
}

impl ParamEntry {
    /// What it is for.
    pub fn role(&self) -> Role {
        self.spec.role
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Every parameter of a model, and every running statistic, in the order in which a visitor meets them. Keyed by path: ids change
/// on load, paths do not.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamTable {
    entries: Vec<ParamEntry>,
    parametrization: Parametrization,
    shape: Shape,
}

/// What a builder notes of a parameter when it makes it.
#[derive(Clone, Debug)]
pub(super) struct Birth {
    pub(super) spec: Spec,
    pub(super) init_std: f64,
    pub(super) lr: f64,
    /// The path it was given, where it was given one.
    pub(super) path: Option<String>,
}

impl ParamTable {
    /// Walks the model once. A parameter that no builder made, or that stands under another name than it was given, has no
    /// draw and no factors that could be right: a fault of the model's code, and a panic.
    pub(super) fn new<M: Module>(
        model: &M,
        mut births: HashMap<ParamId, Birth>,
        parametrization: Parametrization,
        shape: Shape,
    ) -> Self {
        let mut entries = Vec::new();
        model.visit(&mut Walk::new(|path: &str, id: ParamId, dims: Vec<usize>| {
            let birth =
                births.remove(&id).unwrap_or_else(|| panic!("{path} is no weight of this builder, or is met twice"));
            if let Some(given) = birth.path.filter(|given| given != path) {
                panic!("the weight at {path} was made as {given}: build it within the names of the fields it is in");
            }
            entries.push(ParamEntry {
                path: path.to_string(),
                factors: factors(parametrization, &birth.spec, birth.lr, shape, Update::Normalized),
                update: Update::Normalized,
                lr: birth.lr,
                block: birth.spec.block,
                spec: birth.spec,
                shape: dims,
                init_std: birth.init_std,
            });
        }));
        assert!(births.is_empty(), "{} weights were made and are not in the model", births.len());
        Self { entries, parametrization, shape }
    }

    /// The table for the update that `of` gives for each weight; a new table is for [`Update::Normalized`].
    pub fn for_updates(mut self, of: impl Fn(&ParamEntry) -> Update) -> Self {
        for entry in &mut self.entries {
            entry.update = of(entry);
            entry.factors = factors(self.parametrization, &entry.spec, entry.lr, self.shape, entry.update);
        }
        self
    }

    /// What the factors come from, defaults written out.
    pub fn parametrization(&self) -> Parametrization {
        self.parametrization
    }

    /// The parameters in the order of a visit.
    pub fn iter(&self) -> std::slice::Iter<'_, ParamEntry> {
        self.entries.iter()
    }

    /// The parameters in the order of a visit.
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

/// A visitor that knows the path of each parameter: burn's derive never calls the visits with a path.
pub struct Walk<F> {
    path: Vec<String>,
    visit: F,
}

impl<F: FnMut(&str, ParamId, Vec<usize>)> Walk<F> {
    /// Calls `visit` with the path, the id and the shape of every float parameter.
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
