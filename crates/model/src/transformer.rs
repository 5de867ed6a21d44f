use crate::attention::{Attention, Cache};
use crate::axes::BranchAxes;
use crate::block::{Block, Pass};
use crate::config::{ModelConfig, ModelError, value};
use crate::embedding::EmbeddingScale;
use crate::linear::{Linear, ScalarBiases, linear};
use crate::mlp::Mlp;
use crate::nursery::Nursery;
use crate::position::{Position, Rotary, sinusoids};
use crate::precision::Precision;
use crate::probe::{Observe, Probe};
use crate::qk_norm::{AttentionScale, QkNorm};
use crate::table::ParamTable;
use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Int, Tensor, module};
use unitgain_init::Role;
use unitgain_norms::{Norm, NormConfig};
use unitgain_residual::{Branch, Stream, times};

/// A decoder-only Transformer. Built by [`ModelConfig::build`].
///
/// Activations are `[batch * time, width]` throughout: a linear layer on three axes would be `batch`
/// small matrix products instead of one.
#[derive(Module, Debug)]
pub struct Transformer {
    embedding: Param<Tensor<2>>,
    position: Option<Param<Tensor<2>>>,
    /// Fixed positions, where they are not learned.
    sinusoids: Option<Tensor<2>>,
    embedding_norm: Norm,
    dropout: Dropout,
    blocks: Vec<Block>,
    final_norm: Norm,
    /// None where the head is the transposed embedding.
    head: Option<Linear>,
    /// Bias of a tied head, `[vocabulary]`.
    tied_head_bias: Option<Param<Tensor<1>>>,
    head_multiplier: f64,
    /// What token embeddings and positions are multiplied by, beside `embedding_scale`.
    input_multipliers: [f64; 2],
    /// Learned factor of the token embedding, `[1]`.
    learned_scale: Option<Param<Tensor<1>>>,
    embedding_scale: f64,
    logit_softcap: f64,
    /// Whether there is a second stream.
    dual: bool,
    #[module(skip)]
    precision: Precision,
}

/// A point of the forward pass that [`Transformer::forward_observed`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The stream before the first block.
    Embedding,
    /// The stream after this block.
    Block(usize),
    /// What the head reads.
    FinalNorm,
    /// What it writes, `[batch * time, vocabulary]`, f32 and before the soft-cap.
    Logits,
}

impl ModelConfig {
    /// Draws the model from `seed` on the host and puts it on `device`, which must be an autodiff
    /// device if the model is to be trained. The same seed gives the same weights on every device,
    /// and two configurations draw each matrix that they both have from the same numbers: it differs
    /// by the ratio of their standard deviations alone.
    ///
    /// # Errors
    /// As [`ModelConfig::resolved`], and if `vocab_size` is not set.
    pub fn build(&self, seed: u64, device: &Device) -> Result<(Transformer, ParamTable), ModelError> {
        let config = self.resolved()?;
        let vocab = config.vocab_size.ok_or_else(|| {
            value("vocab_size", "unset", "must be the number of token ids of the data the model is for")
        })?;
        let mut nursery = Nursery::new(&config, seed, device);
        let d = config.d_model;
        let model = Transformer {
            embedding: nursery.matrix("embedding", Role::Embedding, vocab, d),
            position: matches!(config.position, Position::Learned {})
                .then(|| nursery.matrix("position", Role::Embedding, config.context, d)),
            sinusoids: matches!(config.position, Position::Sinusoidal {}).then(|| sinusoids(config.context, d, device)),
            embedding_norm: nursery.norm(&config.embedding_norm.unwrap_or(NormConfig::None {}), d, Role::Norm),
            dropout: dropout(&config),
            blocks: (0..config.n_layers).map(|layer| block(&config, layer, &mut nursery, device)).collect(),
            final_norm: {
                nursery.enter(None);
                match config.final_norm {
                    Some(true) => nursery.norm(&config.norm, d, Role::Norm),
                    Some(false) | None => Norm::none(),
                }
            },
            head: (!config.tie_embeddings).then(|| nursery.linear("head", Role::Head, d, vocab, config.head_bias)),
            tied_head_bias: (config.tie_embeddings && config.head_bias)
                .then(|| nursery.bias("head", Role::Head, d, vocab)),
            head_multiplier: nursery.factors(Role::Head, d, vocab).forward,
            input_multipliers: input_multipliers(&config, &nursery),
            learned_scale: match config.embedding_scale {
                Some(EmbeddingScale::Learned { init }) => Some(nursery.scalar(init.unwrap_or(1.0), 1.0)),
                Some(EmbeddingScale::Constant { .. }) | None => None,
            },
            embedding_scale: match config.embedding_scale {
                Some(EmbeddingScale::Constant { value }) => value,
                Some(EmbeddingScale::Learned { .. }) | None => 1.0,
            },
            logit_softcap: config.logit_softcap,
            dual: config.branches().any(|b| b.placement.is_dual()),
            precision: Precision::F32,
        };
        let table = nursery.table(&model);
        Ok((model, table))
    }
}

/// Under u-muP the embedding of a token and that of its position, which is as large (a sinusoid 1/sqrt(2) of it), add up to
/// size 1.
fn input_multipliers(config: &ModelConfig, nursery: &Nursery<'_>) -> [f64; 2] {
    let forward = nursery.factors(Role::Embedding, config.vocab_size.unwrap_or(1), config.d_model).forward;
    match (config.parametrization.unit_scaling(), config.position) {
        (Some(_), Position::Learned {}) => [0.5f64.sqrt(); 2],
        (Some(_), Position::Sinusoidal {}) => [0.5f64.sqrt(), 1.0],
        (None, Position::Sinusoidal {}) => [forward, 1.0],
        (Some(_) | None, _) => [forward; 2],
    }
}

fn dropout(config: &ModelConfig) -> Dropout {
    DropoutConfig::new(config.dropout).init()
}

fn block(config: &ModelConfig, layer: usize, nursery: &mut Nursery<'_>, device: &Device) -> Block {
    nursery.enter(Some(layer));
    let around_attention = config.axes(layer, Branch::Attention);
    let around_mlp = config.axes(layer, Branch::Mlp);
    let shape = config.shape();
    let (d, head_dim, heads) = (shape.width, shape.head_dim, config.n_heads);
    let kv_heads = config.n_kv_heads.unwrap_or(heads);
    let d_ff = config.d_ff.unwrap_or(4 * d);
    let attention_bias = config.attention_bias.unwrap_or(config.bias);
    let mut attention = |name, role, fan_in, fan_out| {
        nursery.linear(&format!("blocks.{layer}.attention.{name}"), role, fan_in, fan_out, attention_bias)
    };
    let query = attention("query", Role::Query, d, heads * head_dim);
    let key = attention("key", Role::Key, d, kv_heads * head_dim);
    let value = attention("value", Role::Value, d, kv_heads * head_dim);
    let out = attention("out", Role::AttentionOutput, heads * head_dim, d);
    let mut mlp = |name, role, fan_in, fan_out| {
        nursery.linear(&format!("blocks.{layer}.mlp.{name}"), role, fan_in, fan_out, config.bias)
    };
    let gate = config.activation.is_gated().then(|| mlp("gate", Role::MlpIn, d, d_ff));
    let up = mlp("up", Role::MlpIn, d, d_ff);
    let down = mlp("down", Role::MlpOut, d_ff, d);
    let qkv = around_attention.placement.qkv_norm();
    let unit = config.parametrization.unit_scaling();
    let qk_norm = QkNorm::new(
        if qkv { &around_attention.norm } else { &config.qk_norm },
        config.qk_norm_over,
        config.attention_scale.unwrap_or(AttentionScale::HeadDim {}),
        [heads, kv_heads, head_dim, config.parametrization.base_width(d)],
        config.parametrization.attention_scale(shape),
        device,
    );
    nursery.adopt_qk_norm(&qk_norm, config.qk_norm_over);
    Block {
        around_attention: nursery.residual(around_attention),
        attention: Attention {
            query,
            key,
            value,
            out,
            qk_norm,
            value_norm: if qkv { nursery.norm(&around_attention.norm, head_dim, Role::QkNorm) } else { Norm::none() },
            head_scale: config
                .head_scale
                .unwrap_or(around_attention.placement.head_scale())
                .then(|| nursery.constant(1.0, heads, Role::HeadScale)),
            rotary: match config.position {
                Position::Rope { theta } => Some(Rotary::new(config.context, head_dim, theta, device)),
                Position::Learned {} | Position::Sinusoidal {} | Position::None {} => None,
            },
            inner_norm: inner_norm(nursery, around_attention, heads * head_dim),
            biases: scalar_biases(nursery, around_attention, 2),
            heads,
            kv_heads,
            softcap: config.attention_softcap,
            output_scale: unit.map_or(1.0, |unit| 1.0 / unit.attention_size(head_dim, config.context)),
        },
        around_mlp: nursery.residual(around_mlp),
        mlp: Mlp {
            gate,
            up,
            down,
            inner_norm: inner_norm(nursery, around_mlp, d_ff),
            biases: scalar_biases(nursery, around_mlp, 3),
            activation: config.activation,
            unit: unit.map(|unit| [unit.activation, config.activation.unit_gain(unit.activation)]),
        },
        shared_scale: around_attention.scale.is_shared().then(|| nursery.scalar(0.0, 1.0)),
        dropout: dropout(config),
    }
}

/// The norm inside a branch, where its placement has one.
fn inner_norm(nursery: &mut Nursery<'_>, axes: BranchAxes, width: usize) -> Norm {
    match axes.placement.inner_norm(axes.branch) {
        true => nursery.norm(&axes.norm, width, Role::Norm),
        false => Norm::none(),
    }
}

/// The scalar biases inside a branch, where its scale has them.
fn scalar_biases(nursery: &mut Nursery<'_>, axes: BranchAxes, count: usize) -> ScalarBiases {
    let count = if axes.scale.has_scalar_biases() { count } else { 0 };
    ScalarBiases { values: (0..count).map(|_| nursery.scalar(0.0, axes.scale.lr_factor())).collect() }
}

impl Transformer {
    /// Logits `[batch, time, vocabulary]` of the token after each of `tokens`, `[batch, time]`.
    ///
    /// On an autodiff model dropout is on; on `model.valid()` it is off and no graph is kept.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.run(tokens, None, &())
    }

    /// [`Transformer::forward`], showing the stream, `[batch * time, width]`, at every [`Point`].
    pub fn forward_observed(&self, tokens: Tensor<2, Int>, observe: &mut dyn FnMut(Point, &Tensor<2>)) -> Tensor<3> {
        self.run(tokens, None, &Observe::new(observe))
    }

    /// [`Transformer::forward`], seen from inside.
    pub fn forward_probed(&self, tokens: Tensor<2, Int>, probe: &dyn Probe) -> Tensor<3> {
        self.run(tokens, None, probe)
    }

    /// [`Transformer::forward`] for tokens that follow those in `cache`, which grows by them. Together
    /// they must not be more than the context.
    pub fn forward_cached(&self, tokens: Tensor<2, Int>, cache: &mut Cache) -> Tensor<3> {
        self.run(tokens, Some(cache), &())
    }

    /// The stack without embedding and head: the norm of the embedding where there is one, the blocks and
    /// the final norm, on a stream `x`, `[batch, time, width]`, seen from inside.
    pub fn forward_stream(&self, x: Tensor<3>, probe: &dyn Probe) -> Tensor<3> {
        let [batch, time, width] = x.dims();
        let x = self.embedding_norm.forward_rows(x.reshape([batch * time, width]), batch);
        self.stream(x, batch, 0, None, probe).reshape([batch, time, width])
    }

    /// The same weights, computed with in another precision.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same weights, with another probability of dropout.
    pub fn with_dropout(mut self, dropout: f64) -> Self {
        self.dropout = DropoutConfig::new(dropout).init();
        for block in &mut self.blocks {
            block.dropout = self.dropout.clone();
        }
        self
    }

    /// What the parametrization multiplies the logits by, as a factor of the head.
    pub fn head_multiplier(&self) -> f64 {
        self.head_multiplier
    }

    fn run(&self, tokens: Tensor<2, Int>, mut cache: Option<&mut Cache>, probe: &dyn Probe) -> Tensor<3> {
        let [batch, time] = tokens.dims();
        let start = cache.as_ref().map_or(0, |cache| cache.length);
        if let Some(cache) = cache.as_deref_mut() {
            cache.blocks.resize(self.blocks.len(), None);
            cache.length += time;
        }

        let x = self.embedding_norm.forward_rows(self.embed(tokens, start), batch);
        let x = self.dropout.forward(x);
        let x = self.precision.enter(self.stream(x, batch, start, cache, probe));
        let logits = match &self.head {
            Some(head) => head.forward(x, probe),
            None => {
                let bias = self.tied_head_bias.as_ref().map(Param::val);
                linear(times(x, self.head_multiplier), self.embedding.val().transpose(), bias, None)
            }
        };
        let logits = probe.stream(Point::Logits, self.precision.leave(logits));
        let logits =
            if self.logit_softcap > 0.0 { (logits / self.logit_softcap).tanh() * self.logit_softcap } else { logits };
        let vocab = logits.dims()[1];
        logits.reshape([batch, time, vocab])
    }

    /// From the embedding to what the head reads.
    fn stream(
        &self,
        x: Tensor<2>,
        batch: usize,
        start: usize,
        mut cache: Option<&mut Cache>,
        probe: &dyn Probe,
    ) -> Tensor<2> {
        let x = probe.stream(Point::Embedding, x);
        let mut stream = Stream::new(x, batch, self.dual);
        for (i, block) in self.blocks.iter().enumerate() {
            let cache = cache.as_deref_mut().map(|cache| &mut cache.blocks[i]);
            let pass = Pass { start, layer: i, precision: self.precision, probe };
            stream = block.forward(stream, pass, cache);
            stream.x = probe.stream(Point::Block(i), stream.x);
        }
        probe.stream(Point::FinalNorm, stream.close(&self.final_norm))
    }

    /// Token and position embedding, `[batch * time, width]`.
    fn embed(&self, tokens: Tensor<2, Int>, start: usize) -> Tensor<2> {
        let [batch, time] = tokens.dims();
        let [of_tokens, of_positions] = self.input_multipliers;
        let x = times(module::embedding(self.embedding.val(), tokens), self.embedding_scale * of_tokens);
        let x = match &self.learned_scale {
            Some(scale) => x * scale.val().unsqueeze(),
            None => x,
        };
        let positions = match (&self.position, &self.sinusoids) {
            (Some(learned), _) => Some(learned.val()),
            (None, fixed) => fixed.clone(),
        };
        let x = match positions {
            Some(table) => x + times(table.narrow(0, start, time), of_positions).unsqueeze(),
            None => x,
        };
        let width = x.dims()[2];
        x.reshape([batch * time, width])
    }
}
