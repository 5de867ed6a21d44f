//! Checks of single values of a configuration.

use super::{AttentionPlan, Plan};
use crate::config::{AttentionScale, BlockConfig, EmbeddingScale, ModelConfig, Position, QkNormOver};
use unitgain_norms::NormConfig;
use unitgain_variant::{Fault, Variant, require};

/// Largest value of any size: far above what can be trained, far below overflow.
const MOST: usize = 1 << 20;
/// Largest number of `[[model.block]]` ranges, all of which are searched for every block.
const MOST_RANGES: usize = 500;
/// Largest number of blocks, each of which has a plan before any weight is made.
const MOST_BLOCKS: usize = 1 << 16;
/// Largest number of parameters: 64 GB of weights, without gradients and optimizer.
const MOST_PARAMETERS: f64 = 1.6e10;

impl ModelConfig {
    pub(super) fn check_sizes(&self, vocabulary: usize) -> Result<(), Fault> {
        let sizes = [
            ("vocab_size", Some(vocabulary)),
            ("context", Some(self.context)),
            ("d_model", Some(self.d_model)),
            ("n_layers", Some(self.n_layers)),
            ("n_heads", Some(self.n_heads)),
            ("n_kv_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("d_ff", self.d_ff),
        ];
        for (key, size) in sizes {
            let size = size.unwrap_or(1);
            require(size > 0, key, size, "must be at least 1")?;
            require(size <= MOST, key, size, format!("must be at most {MOST}"))?;
        }
        let own = self.vocab_size.unwrap_or(vocabulary);
        let problem = format!("must be the vocabulary of the plan, {vocabulary}; leave it out to take that");
        require(own == vocabulary, "vocab_size", own, problem)?;
        require(self.n_layers <= MOST_BLOCKS, "n_layers", self.n_layers, format!("must be at most {MOST_BLOCKS}"))?;
        let divides = self.head_dim.is_some() || self.d_model.is_multiple_of(self.n_heads);
        let problem = format!("must be a multiple of n_heads = {}, or set head_dim", self.n_heads);
        require(divides, "d_model", self.d_model, problem)
    }

    pub(super) fn check_values(&self, head_dim: usize) -> Result<(), Fault> {
        let kv_heads = self.n_kv_heads.unwrap_or(self.n_heads);
        let problem = format!("must divide n_heads = {}", self.n_heads);
        require(self.n_heads.is_multiple_of(kv_heads), "n_kv_heads", kv_heads, problem)?;
        self.check_position("position", &self.position, head_dim)?;
        let problem = "must be a probability from 0 up to, but without, 1";
        require((0.0..1.0).contains(&self.dropout), "dropout", self.dropout, problem)?;
        for (key, cap) in [("attention_softcap", self.attention_softcap), ("logit_softcap", self.logit_softcap)] {
            require(cap >= 0.0 && cap.is_finite(), key, cap, "must be a positive number, or 0 for none")?;
        }
        require(self.window <= MOST, "window", self.window, format!("must be at most {MOST}, or 0 for all"))?;
        let problem = "must be a number other than 0";
        require(self.logit_scale != 0.0 && self.logit_scale.is_finite(), "logit_scale", self.logit_scale, problem)?;
        let kinds = [
            ("norm", self.norm.check()),
            ("embedding_norm", self.embedding_norm.iter().try_for_each(Variant::check)),
            ("qk_norm", self.qk_norm.check()),
            ("scale", self.scale.check()),
            ("placement", self.placement.check()),
            ("mlp_placement", self.mlp_placement.iter().try_for_each(Variant::check)),
            ("weight_norm", self.weight_norm.check()),
            ("embedding_scale", self.embedding_scale.map_or(Ok(()), EmbeddingScale::check)),
            ("attention_scale", self.attention_scale.map_or(Ok(()), AttentionScale::check)),
            ("init", self.init.iter().try_for_each(Variant::check)),
            ("parametrization", self.parametrization.check()),
        ];
        kinds.into_iter().try_for_each(|(key, checked)| checked.map_err(|fault| fault.below(key)))
    }

    /// Checks a position encoding of heads of this size.
    fn check_position(&self, key: &str, position: &Position, head_dim: usize) -> Result<(), Fault> {
        position.check().map_err(|fault| fault.below(key))?;
        let Position::Rope { fraction, .. } = *position else { return Ok(()) };
        let turning = position.turning(head_dim);
        let problem = "must be even with position = \"rope\", which turns pairs; change n_heads or head_dim";
        require(fraction < 1.0 || turning.is_multiple_of(2), "head_dim", head_dim, problem)?;
        let problem = format!(
            "turns {turning} of the {head_dim} entries of a head; must be such that they are pairs, at least one"
        );
        let key = format!("{key}.fraction");
        require(turning > 0 && turning.is_multiple_of(2), &key, fraction, problem)
    }

    /// Checks that every norm can normalize its input.
    pub(super) fn check_widths(&self, plan: &Plan) -> Result<(), Fault> {
        let fits = |key: &str, norm: NormConfig, width: usize| match norm {
            NormConfig::LayerNorm { .. } if width == 1 => {
                Err(Fault::new(key, "layer_norm", "makes 0 of a single entry; take rms_norm, or more than one entry"))
            }
            _ => norm.check_width(width).map_err(|fault| fault.below(key)),
        };
        let d = plan.shape.width;
        for block in &plan.blocks {
            let attention = &block.attention;
            let inside = [attention.heads * attention.head_dim, block.mlp.d_ff];
            for (branch, inside) in [&attention.branch, &block.mlp.branch].into_iter().zip(inside) {
                let own =
                    |own: &BlockConfig| own.norm.is_some() && (own.range[0]..own.range[1]).contains(&branch.site.block);
                let key = self.block.iter().position(own).map_or("norm".into(), |i| format!("block.{i}.norm"));
                let inner = branch.asks_for_inner_norm().then_some(inside);
                let qkv = branch.qkv_norm().then_some(attention.head_dim);
                let around = (!branch.placement.norms(branch.site.branch).is_empty()).then_some(d);
                [around, inner, qkv].into_iter().flatten().try_for_each(|width| fits(&key, branch.norm, width))?;
            }
        }
        if plan.final_norm {
            fits("norm", plan.norm, d)?;
        }
        fits("embedding_norm", plan.embedding_norm, d)?;
        let AttentionPlan { heads, kv_heads, head_dim, .. } = plan.blocks[0].attention;
        let [q, k] = match plan.qk_norm_over {
            QkNormOver::Head => [head_dim; 2],
            QkNormOver::Width => [heads * head_dim, kv_heads * head_dim],
        };
        fits("qk_norm", plan.qk_norm, q)?;
        fits("qk_norm", plan.qk_norm, k)
    }

    pub(super) fn check_blocks(&self, head_dim: usize) -> Result<(), Fault> {
        let problem = format!("ranges of blocks are more than {MOST_RANGES}; join those that are alike");
        require(self.block.len() <= MOST_RANGES, "block", self.block.len(), problem)?;
        let mut taken = vec![false; self.n_layers];
        for (i, block) in self.block.iter().enumerate() {
            let [start, end] = block.range;
            let shown = format!("[{start}, {end}]");
            let key = format!("block.{i}.range");
            let problem = format!(
                "must be [first, last + 1] with first < last + 1 <= n_layers = {}; blocks are counted from 0",
                self.n_layers
            );
            require(start < end && end <= self.n_layers, &key, &shown, problem)?;
            if let Some(taken_block) = (start..end).find(|&i| std::mem::replace(&mut taken[i], true)) {
                return Err(Fault::new(&key, shown, format!("block {taken_block} is already in another range")));
            }
            let kinds = [
                ("norm", block.norm.iter().try_for_each(Variant::check)),
                ("scale", block.scale.iter().try_for_each(Variant::check)),
                ("placement", block.placement.iter().try_for_each(Variant::check)),
                ("mlp_placement", block.mlp_placement.iter().try_for_each(Variant::check)),
            ];
            for (name, checked) in kinds {
                checked.map_err(|fault| fault.below(&format!("block.{i}.{name}")))?;
            }
            let window = block.window.unwrap_or(0);
            let problem = format!("must be at most {MOST}, or 0 for all");
            require(window <= MOST, format!("block.{i}.window"), window, problem)?;
            let Some(position) = &block.position else { continue };
            let key = format!("block.{i}.position");
            let is_of_blocks = |position: &Position| matches!(position, Position::Rope { .. } | Position::None {});
            let problem = "must be rope or none, as must be model.position: the others are added to the embedding";
            let is_allowed = is_of_blocks(position) && is_of_blocks(&self.position);
            require(is_allowed, &key, position.about().name, problem)?;
            self.check_position(&key, position, head_dim)?;
        }
        Ok(())
    }
}

impl Plan {
    /// Checks the number of parameters of the matrices, before any memory is allocated.
    pub(super) fn check_parameters(&self) -> Result<(), Fault> {
        let parameters = self.weights();
        let problem = format!("makes a model of {parameters:.1e} parameters, more than {MOST_PARAMETERS:.0e}");
        require(parameters <= MOST_PARAMETERS, "d_model", self.shape.width, problem)
    }
}
