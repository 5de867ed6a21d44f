//! Weights in the tensors of the reference.

use super::{Architecture, PresetError};
use crate::weights::Tensors;
use std::collections::{BTreeSet, HashMap};
use unitgain_norms::NormConfig;

/// Where a weight is in the tensors of the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Path of the weight.
    pub path: String,
    /// Name of the tensor.
    pub name: String,
    /// Whether the tensor is the transposed matrix, as those of PyTorch's linear layers, `[out, in]`.
    pub is_transposed: bool,
    /// The part of the tensor that is the weight; None for all of it.
    pub part: Option<Part>,
    /// Whether the weight is 1 more than the tensor, which is what a gain differs from 1 by.
    pub is_offset: bool,
}

/// Some entries of one axis of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The axis, 0 or 1.
    pub axis: usize,
    /// Its entries, in the order of the weight.
    pub entries: Vec<usize>,
}

impl Piece {
    /// A tensor as it is.
    pub(super) fn same(path: impl Into<String>, name: impl Into<String>) -> Self {
        Self { path: path.into(), name: name.into(), is_transposed: false, part: None, is_offset: false }
    }

    /// The transposed tensor.
    pub(super) fn turned(path: impl Into<String>, name: impl Into<String>) -> Self {
        Self { is_transposed: true, ..Self::same(path, name) }
    }

    /// Some entries of an axis of the tensor.
    pub(super) fn part(self, axis: usize, entries: impl IntoIterator<Item = usize>) -> Self {
        Self { part: Some(Part { axis, entries: entries.into_iter().collect() }), ..self }
    }

    /// Weight and bias of a linear layer of PyTorch.
    pub(super) fn linear(path: &str, name: &str, bias: bool) -> Vec<Self> {
        let mut pieces = vec![Self::turned(format!("{path}.weight"), format!("{name}.weight"))];
        pieces.extend(bias.then(|| Self::same(format!("{path}.bias"), format!("{name}.bias"))));
        pieces
    }

    /// Gain and bias of a norm, as far as it has them.
    pub(super) fn norm(norm: NormConfig, path: &str, name: &str) -> Vec<Self> {
        let piece = |ours: &str, theirs: &str| Self::same(format!("{path}.{ours}"), format!("{name}.{theirs}"));
        let (kind, has_gain, has_bias) = match norm {
            NormConfig::LayerNorm { gain, bias, .. } => ("LayerNorm", gain, bias),
            NormConfig::RmsNorm { gain, .. } => ("RmsNorm", gain, false),
            other => unreachable!("no preset has {other:?}"),
        };
        let gain = has_gain.then(|| piece(&format!("{kind}.gamma"), "weight"));
        gain.into_iter().chain(has_bias.then(|| piece(&format!("{kind}.beta"), "bias"))).collect()
    }

    /// The entries of the weight on an axis of its tensor, of `n` entries if the weight has all of them.
    fn entries(&self, axis: usize, n: usize) -> Vec<usize> {
        match &self.part {
            Some(part) if part.axis == axis => part.entries.clone(),
            _ => (0..n).collect(),
        }
    }

    /// The weight in its tensor, of `shape`.
    fn take(&self, (shape, values): &(Vec<usize>, Vec<f32>)) -> Result<(Vec<usize>, Vec<f32>), String> {
        let product: usize = shape.iter().product();
        let (rows, columns) = match shape[..] {
            [n] => (n, 1),
            [rows, columns] => (rows, columns),
            _ => return Err(format!("{} has {} axes", self.name, shape.len())),
        };
        if product != values.len() {
            return Err(format!("{} is {shape:?} and has {} numbers", self.name, values.len()));
        }
        let (r, c) = (self.entries(0, rows), self.entries(1, columns));
        if r.iter().any(|row| *row >= rows) || c.iter().any(|column| *column >= columns) {
            return Err(format!("{} is {shape:?}, which is too small", self.name));
        }
        let offset = if self.is_offset { 1.0 } else { 0.0 };
        let at = |row: usize, column: usize| values[row * columns + column] + offset;
        let sizes = [r.len(), c.len()];
        let taken = match self.is_transposed {
            false => r.iter().flat_map(|row| c.iter().map(|column| at(*row, *column))).collect(),
            true => c.iter().flat_map(|column| r.iter().map(|row| at(*row, *column))).collect(),
        };
        let shape = match (shape.len(), self.is_transposed) {
            (1, _) => vec![sizes[0]],
            (_, false) => sizes.to_vec(),
            (_, true) => vec![sizes[1], sizes[0]],
        };
        Ok((shape, taken))
    }

    /// Whether a weight of this shape and number of values has the entries of the piece.
    fn has_shape_of(&self, shape: &[usize], values: usize) -> bool {
        let axis = |part: &Part| if self.is_transposed { shape.len() - 1 - part.axis } else { part.axis };
        let is_whole = matches!(shape.len(), 1 | 2) && shape.iter().product::<usize>() == values;
        let fits = |part: &Part| part.axis < shape.len() && shape[axis(part)] == part.entries.len();
        is_whole && self.part.as_ref().is_none_or(fits)
    }

    /// Puts the weight into its tensor, which is made if this is its first piece, and as large as its pieces ask.
    fn put(&self, (shape, values): &(Vec<usize>, Vec<f32>), tensor: &mut (Vec<usize>, Vec<f32>)) {
        let [rows, columns] = match shape[..] {
            [n] => [n, 1],
            [rows, columns] if self.is_transposed => [columns, rows],
            [rows, columns] => [rows, columns],
            _ => unreachable!("weights are vectors and matrices"),
        };
        let (r, c) = (self.entries(0, rows), self.entries(1, columns));
        let end = |entries: &[usize]| entries.iter().max().map_or(0, |last| last + 1);
        let sizes = match tensor.0[..] {
            [n] => [n, 1],
            [rows, columns] => [rows, columns],
            _ => [0, 0],
        };
        let new = [sizes[0].max(end(&r)), sizes[1].max(end(&c))];
        if new != sizes {
            let at = |i: usize| (i / new[1], i % new[1]);
            let old = |(row, column)| {
                if row < sizes[0] && column < sizes[1] { tensor.1[row * sizes[1] + column] } else { 0.0 }
            };
            let grown = (0..new[0] * new[1]).map(|i| old(at(i))).collect();
            *tensor = (if shape.len() == 1 { vec![new[0]] } else { new.to_vec() }, grown);
        }
        let offset = if self.is_offset { 1.0 } else { 0.0 };
        for (i, row) in r.iter().enumerate() {
            for (j, column) in c.iter().enumerate() {
                let value = if self.is_transposed { values[j * rows + i] } else { values[i * columns + j] };
                tensor.1[row * new[1] + column] = value - offset;
            }
        }
    }
}

impl Architecture {
    /// What is said of tensors that no piece has by this name of a piece.
    fn strangers(&self, tensors: &Tensors, name: fn(&Piece) -> &String) -> Vec<String> {
        let known: BTreeSet<&String> = self.pieces.iter().map(name).collect();
        let mut extra: Vec<_> = tensors.keys().filter(|name| !known.contains(name)).collect();
        extra.sort();
        extra.into_iter().map(|name| format!("{name} is not of {}", self.name)).collect()
    }

    /// The weights in the tensors of the reference, by path.
    ///
    /// # Errors
    /// [`PresetError::Tensors`] names those that are missing, too small, or not of the architecture. Shapes are checked when the
    /// model is built ([`Source::Load`](crate::weights::Source::Load)).
    pub fn weights(&self, tensors: &Tensors) -> Result<Tensors, PresetError> {
        let (mut weights, mut problems) = (HashMap::new(), Vec::new());
        for piece in &self.pieces {
            match tensors.get(&piece.name).map(|tensor| piece.take(tensor)) {
                None => problems.push(format!("{} is missing", piece.name)),
                Some(Err(problem)) => problems.push(problem),
                Some(Ok(weight)) => {
                    weights.insert(piece.path.clone(), weight);
                }
            }
        }
        problems.extend(self.strangers(tensors, |piece| &piece.name));
        problems.dedup();
        if problems.is_empty() { Ok(weights) } else { Err(PresetError::Tensors(problems)) }
    }

    /// The tensors of the reference for weights, by path: the inverse of [`Architecture::weights`]. Entries that no weight has,
    /// as the first two positions of OPT, are 0.
    ///
    /// # Errors
    /// [`PresetError::Tensors`] names weights that are missing, of another shape than their part of a tensor, or not of the
    /// architecture.
    pub fn tensors(&self, weights: &Tensors) -> Result<Tensors, PresetError> {
        let (mut tensors, mut problems) = (Tensors::new(), Vec::new());
        for piece in &self.pieces {
            match weights.get(&piece.path) {
                None => problems.push(format!("{} is missing", piece.path)),
                Some((shape, values)) if !piece.has_shape_of(shape, values.len()) => {
                    problems.push(format!("{} is {shape:?}, with {} numbers", piece.path, values.len()));
                }
                Some(weight) => piece.put(weight, tensors.entry(piece.name.clone()).or_default()),
            }
        }
        problems.extend(self.strangers(weights, |piece| &piece.path));
        if problems.is_empty() { Ok(tensors) } else { Err(PresetError::Tensors(problems)) }
    }
}
