use crate::ops::Precision;
use crate::probe::Probe;
use burn::tensor::Tensor;

/// The state of a forward pass within a block.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// Position of the first token.
    pub start: usize,
    /// Index of the block, from 0.
    pub block: usize,
    /// Precision of the branches.
    pub precision: Precision,
    /// Observer of the pass; `&()` observes nothing.
    pub probe: &'a dyn Probe,
}

/// Keys and values of the tokens seen so far, for generation.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    pub(crate) blocks: Vec<BlockCache>,
    pub(crate) length: usize,
}

impl Cache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of tokens seen.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no token has been seen.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Keys and values of one block, `[sequences, seen, kv_heads, head_dim]` each; none before the first token.
#[derive(Clone, Debug, Default)]
pub struct BlockCache(Option<(Tensor<4>, Tensor<4>)>);

impl BlockCache {
    /// Appends keys and values of further tokens; returns all keys and values.
    pub fn extended(&mut self, k: Tensor<4>, v: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let all = match self.0.take() {
            Some((old_k, old_v)) => (Tensor::cat(vec![old_k, k], 1), Tensor::cat(vec![old_v, v], 1)),
            None => (k, v),
        };
        self.0.insert(all).clone()
    }
}
