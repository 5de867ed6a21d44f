use crate::config::{ModelConfig, Position};
use crate::error::ModelError;
use crate::layers::{Block, BlockCache, Cache, Pass};
use crate::linear::Linear;
use crate::ops::{self, Precision, linear, sinusoids};
use crate::plan::{Plan, TokenScale};
use crate::probe::{Observe, Point, Probe};
use crate::weights::{Builder, ParamTable, Source, Start};
use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, module};
use unitgain_init::Role;
use unitgain_mup::Positions;
use unitgain_norms::{Norm, NormConfig};
use unitgain_residual::{Stream, times};
use unitgain_variant::Fault;

/// A model of the next token that a `Trainer` can train.
pub trait LanguageModel: Module {
    /// Logits `[sequences, time, vocabulary]` of the token after each of `tokens`, `[sequences, time]`. The model may call
    /// `probe`; without the calls, records of training lack the stream.
    fn logits(&self, tokens: Tensor<2, Int>, probe: &dyn Probe) -> Tensor<3>;
}

/// A decoder-only Transformer. Built by [`Plan::build`].
///
/// Activations are `[sequences * time, width]` throughout, since a linear layer on three axes would be one small matrix
/// product per sequence.
#[derive(Module, Debug)]
pub struct Transformer {
    embedding: Param<Tensor<2>>,
    position: Option<Param<Tensor<2>>>,
    /// Fixed position embeddings.
    sinusoids: Option<Tensor<2>>,
    embedding_norm: Norm,
    /// Probability of dropout of the embedding.
    dropout: f64,
    blocks: Vec<Block>,
    final_norm: Norm,
    /// None if the head is the transposed embedding.
    head: Option<Linear>,
    /// Bias of a tied head, `[vocabulary]`.
    tied_head_bias: Option<Param<Tensor<1>>>,
    head_multiplier: f64,
    /// The parametrization's factors of token and position embeddings, beside `embedding_scale`.
    input_multipliers: [f64; 2],
    /// Learned factor of the token embedding, `[1]`.
    learned_scale: Option<Param<Tensor<1>>>,
    embedding_scale: f64,
    logit_scale: f64,
    logit_softcap: f64,
    /// Whether there is a second stream.
    dual: bool,
    /// Largest number of tokens in a sequence.
    context: usize,
    #[module(skip)]
    precision: Precision,
}

impl ModelConfig {
    /// Plans and builds the model, with random weights.
    ///
    /// # Errors
    /// The errors of [`ModelConfig::plan`], and [`ModelError::Value`] if `vocab_size` is not set.
    pub fn build(&self, seed: u64, device: &Device) -> Result<(Transformer, ParamTable), ModelError> {
        let vocabulary = self.vocab_size.ok_or_else(|| {
            Fault::new("vocab_size", "unset", "must be the number of token ids of the data the model is for")
        })?;
        self.plan(vocabulary)?.build(Source::Draw { seed }, device)
    }
}

impl Plan {
    /// Builds the model on `device`, which must be an autodiff device for training. A seed gives the same weights on every
    /// device. Matrices that two plans share are drawn from the same numbers, scaled by their standard deviations.
    ///
    /// # Errors
    /// [`ModelError::Weights`] if the loaded weights do not fit the model.
    pub fn build(&self, source: Source<'_>, device: &Device) -> Result<(Transformer, ParamTable), ModelError> {
        let mut builder = Builder::new(self, source, device);
        let model = Transformer::new(self, &mut builder);
        builder.finish(model)
    }
}

impl LanguageModel for Transformer {
    fn logits(&self, tokens: Tensor<2, Int>, probe: &dyn Probe) -> Tensor<3> {
        self.run(tokens, None, probe)
    }
}

impl Transformer {
    /// The model of a plan, with weights from `builder`.
    pub fn new(plan: &Plan, builder: &mut Builder<'_>) -> Self {
        let (d, context, vocabulary) = (plan.shape.width, plan.context, plan.vocabulary);
        let positions = match plan.position {
            Position::Learned {} => Positions::Learned,
            Position::Sinusoidal {} => Positions::Fixed,
            Position::Rope { .. } | Position::None {} => Positions::None,
        };
        let head = Start { bias: plan.head_bias, gain: if plan.zero_readout { 0.0 } else { 1.0 }, ..Start::default() };
        let head_fans = [d, vocabulary];
        Self {
            embedding: builder.matrix("embedding", Role::Embedding, [vocabulary, d]),
            position: (positions == Positions::Learned)
                .then(|| builder.matrix("position", Role::Embedding, [context, d])),
            sinusoids: (positions == Positions::Fixed).then(|| sinusoids(context, d, builder.device())),
            embedding_norm: builder.norm(&plan.embedding_norm, d, Role::Norm),
            dropout: plan.dropout,
            blocks: plan
                .blocks
                .iter()
                .enumerate()
                .map(|(block, plan)| builder.within_block(block, |builder| Block::new(plan, builder)))
                .collect(),
            final_norm: builder.norm(if plan.final_norm { &plan.norm } else { &NormConfig::None {} }, d, Role::Norm),
            head: (!plan.tie_embeddings).then(|| builder.linear("head", Role::Head, head_fans, head)),
            tied_head_bias: (plan.tie_embeddings && plan.head_bias)
                .then(|| builder.bias("tied_head_bias", "head", Role::Head, head_fans, head.gain)),
            head_multiplier: builder.factors(Role::Head, head_fans).forward,
            input_multipliers: builder.input_factors([vocabulary, d], positions),
            learned_scale: match plan.embedding_scale {
                TokenScale::Learned(start) => Some(builder.scalar(start, 1.0)),
                TokenScale::Fixed(_) => None,
            },
            embedding_scale: match plan.embedding_scale {
                TokenScale::Fixed(scale) => scale,
                TokenScale::Learned(_) => 1.0,
            },
            logit_scale: plan.logit_scale,
            logit_softcap: plan.logit_softcap,
            dual: plan.is_dual(),
            context,
            precision: Precision::F32,
        }
    }

    /// Logits `[sequences, time, vocabulary]` of the token after each of `tokens`, `[sequences, time]`.
    ///
    /// An autodiff model uses dropout; `model.valid()` does not, and keeps no graph.
    ///
    /// # Panics
    /// If a sequence is longer than the context.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.run(tokens, None, &())
    }

    /// [`Transformer::forward`], which calls `observe` with the stream, `[sequences * time, width]`, at every [`Point`].
    pub fn forward_observed(&self, tokens: Tensor<2, Int>, observe: &mut dyn FnMut(Point, &Tensor<2>)) -> Tensor<3> {
        self.run(tokens, None, &Observe::new(observe))
    }

    /// [`Transformer::forward`] with an observer.
    pub fn forward_probed(&self, tokens: Tensor<2, Int>, probe: &dyn Probe) -> Tensor<3> {
        self.run(tokens, None, probe)
    }

    /// [`Transformer::forward`] for tokens that follow the ones in `cache`, to which they are added.
    ///
    /// # Panics
    /// If there are more tokens than the context in total.
    pub fn forward_cached(&self, tokens: Tensor<2, Int>, cache: &mut Cache) -> Tensor<3> {
        self.run(tokens, Some(cache), &())
    }

    /// The model without embedding and head: embedding norm, blocks and final norm, for a stream `x`,
    /// `[sequences, time, width]`.
    ///
    /// # Panics
    /// If `x` has another width than the model.
    pub fn forward_stream(&self, x: Tensor<3>, probe: &dyn Probe) -> Tensor<3> {
        let [sequences, time, width] = x.dims();
        let x = self.embedding_norm.forward_rows(x.reshape([sequences * time, width]), sequences);
        self.stream(x, sequences, 0, None, probe).reshape([sequences, time, width])
    }

    /// The model with another precision of the branches.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The model with another dropout probability.
    pub fn with_dropout(mut self, dropout: f64) -> Self {
        self.dropout = dropout;
        for block in &mut self.blocks {
            block.set_dropout(dropout);
        }
        self
    }

    /// The parametrization's factor of the logits.
    pub fn head_multiplier(&self) -> f64 {
        self.head_multiplier
    }

    fn run(&self, tokens: Tensor<2, Int>, mut cache: Option<&mut Cache>, probe: &dyn Probe) -> Tensor<3> {
        let [sequences, time] = tokens.dims();
        let start = cache.as_ref().map_or(0, |cache| cache.length);
        let (end, context) = (start + time, self.context);
        assert!(
            end <= context,
            "a sequence of {end} tokens in a model with context = {context}: cut it, or take a larger context"
        );
        if let Some(cache) = cache.as_deref_mut() {
            cache.blocks.resize(self.blocks.len(), BlockCache::default());
            cache.length += time;
        }

        let x = self.embedding_norm.forward_rows(self.embed(tokens, start), sequences);
        let x = ops::dropout(x, self.dropout, sequences);
        let x = self.precision.enter(self.stream(x, sequences, start, cache, probe));
        let logits = match &self.head {
            Some(head) => head.forward(x, probe),
            None => {
                let bias = self.tied_head_bias.as_ref().map(Param::val);
                linear(times(x, self.head_multiplier), self.embedding.val().transpose(), bias, None)
            }
        };
        let logits = times(self.precision.leave(logits), self.logit_scale);
        let logits = probe.stream(Point::Logits, logits);
        let logits =
            if self.logit_softcap > 0.0 { (logits / self.logit_softcap).tanh() * self.logit_softcap } else { logits };
        let vocab = logits.dims()[1];
        logits.reshape([sequences, time, vocab])
    }

    /// From the embedding to the input of the head.
    fn stream(
        &self,
        x: Tensor<2>,
        sequences: usize,
        start: usize,
        mut cache: Option<&mut Cache>,
        probe: &dyn Probe,
    ) -> Tensor<2> {
        let x = probe.stream(Point::Embedding, x);
        let mut stream = Stream::new(x, sequences, self.dual);
        for (i, block) in self.blocks.iter().enumerate() {
            let cache = cache.as_deref_mut().map(|cache| &mut cache.blocks[i]);
            let pass = Pass { start, block: i, precision: self.precision, probe };
            stream = block.forward(stream, pass, cache);
            stream.x = probe.stream(Point::Block(i), stream.x);
        }
        probe.stream(Point::FinalNorm, stream.close(&self.final_norm))
    }

    /// The sum of token and position embedding, `[sequences * time, width]`.
    fn embed(&self, tokens: Tensor<2, Int>, start: usize) -> Tensor<2> {
        let [sequences, time] = tokens.dims();
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
        x.reshape([sequences * time, width])
    }
}
