//! The table of incompatible settings: in code, docs and practice.

use std::fmt::Write;
use std::path::Path;
use unitgain_model::{
    AttentionScale, BlockConfig, COMBINATIONS, ModelConfig, NormConfig, Parametrization, Placement, Position,
    QkNormOver, ScaleConfig, Scheme, Severity, Variant, WeightNormConfig,
};
use unitgain_norms::weight::Flavour;

fn tiny() -> ModelConfig {
    ModelConfig { vocab_size: Some(11), context: 12, d_model: 16, n_layers: 3, n_heads: 4, ..ModelConfig::default() }
}

fn last_block(placement: Placement) -> BlockConfig {
    BlockConfig { range: [2, 3], placement: Some(placement), ..BlockConfig::default() }
}

#[test]
fn combinations_are_refused_or_warned_of() {
    let deep = || ModelConfig { placement: Placement::DeepNorm {}, ..tiny() };
    let mup = |base_width| Parametrization::mup(base_width);
    let spectral = Parametrization::Spectral { base_width: 4, base_head_dim: None, output_multiplier: 1.0 };
    let complete = Parametrization::CompleteP {
        base_width: 4,
        base_depth: 1,
        base_head_dim: None,
        output_multiplier: 1.0,
        alpha: 1.0,
    };
    let unit = Parametrization::u_mup();
    let standardized = WeightNormConfig::ScaledWeightStandardization { flavour: Flavour::Timm, eps: None };
    let dyt = NormConfig::Dyt { alpha: None, bias: true };
    let init = |name: &str| Scheme::named(name);
    let refused = [
        ModelConfig { init: Some(Scheme::gpt2()), ..deep() },
        ModelConfig { scale: ScaleConfig::Depth {}, ..deep() },
        ModelConfig { scale: ScaleConfig::Depth {}, init: Some(Scheme::gpt2()), ..tiny() },
        ModelConfig { norm: NormConfig::None {}, ..deep() },
        ModelConfig { mlp_placement: Some(Placement::Parallel {}), ..tiny() },
        ModelConfig { zero_writers: true, scale: ScaleConfig::SkipInit { init: 0.0 }, ..tiny() },
        ModelConfig { placement: Placement::PeriNorm {}, embedding_norm: Some(NormConfig::None {}), ..tiny() },
        ModelConfig { final_norm: Some(true), ..deep() },
        ModelConfig { final_norm: Some(true), norm: NormConfig::None {}, ..tiny() },
        ModelConfig {
            zero_writers: true,
            placement: Placement::Sandwich {},
            norm: NormConfig::L2Norm { eps: 1e-5 },
            ..tiny()
        },
        ModelConfig { zero_writers: true, weight_norm: WeightNormConfig::weight_norm(), ..tiny() },
        ModelConfig { weight_norm: standardized, parametrization: mup(4), ..tiny() },
        ModelConfig { placement: Placement::HybridNorm {}, qk_norm: NormConfig::rms_norm(), ..tiny() },
        ModelConfig { placement: Placement::ResDual {}, mlp_placement: Some(Placement::PostNorm {}), ..tiny() },
        ModelConfig { qk_norm: NormConfig::InstanceNorm { eps: 1e-5, affine: true }, ..tiny() },
        ModelConfig { scale: ScaleConfig::Fixup {}, zero_writers: true, ..tiny() },
        ModelConfig { qk_norm_over: QkNormOver::Width, ..tiny() },
        ModelConfig {
            placement: Placement::HybridNorm {},
            norm: NormConfig::InstanceNorm { eps: 1e-5, affine: true },
            ..tiny()
        },
        ModelConfig { d_model: 1, n_heads: 1, norm: NormConfig::rms_norm(), weight_norm: standardized, ..tiny() },
        ModelConfig { norm: NormConfig::InstanceNorm { eps: 1e-5, affine: true }, context: 1, ..tiny() },
        ModelConfig {
            scale: ScaleConfig::Fixup {},
            placement: Placement::None {},
            weight_norm: standardized,
            ..tiny()
        },
        ModelConfig { init: init("t_fixup"), ..tiny() },
        ModelConfig { init: init("zero"), placement: Placement::Sandwich {}, ..tiny() },
        ModelConfig { init: init("mimetic"), parametrization: mup(4), ..tiny() },
        ModelConfig { init: init("mimetic"), n_kv_heads: Some(2), ..tiny() },
        ModelConfig { parametrization: spectral, ..tiny() },
        ModelConfig { parametrization: complete, placement: Placement::ScaledPreNorm {}, ..tiny() },
        ModelConfig { parametrization: unit, tie_embeddings: false, init: Some(Scheme::lecun()), ..tiny() },
        ModelConfig { parametrization: unit, tie_embeddings: false, placement: Placement::Sandwich {}, ..tiny() },
        ModelConfig { zero_query: true, qk_norm: NormConfig::rms_norm(), ..tiny() },
        ModelConfig { zero_readout: true, ..tiny() },
    ];
    let warned = [
        ModelConfig { final_norm: Some(false), ..tiny() },
        ModelConfig { init: Some(Scheme::lecun()), ..deep() },
        ModelConfig { placement: Placement::ScaledPreNorm {}, init: Some(Scheme::gpt2()), ..tiny() },
        ModelConfig { scale: ScaleConfig::ReZero { shared: false }, ..tiny() },
        ModelConfig { norm: NormConfig::None {}, placement: Placement::PostNorm {}, ..tiny() },
        ModelConfig { scale: ScaleConfig::Depth {}, placement: Placement::Sandwich {}, ..tiny() },
        ModelConfig {
            scale: ScaleConfig::Nfnet { alpha: 0.2 },
            embedding_norm: Some(NormConfig::rms_norm()),
            ..tiny()
        },
        ModelConfig { scale: ScaleConfig::Nfnet { alpha: 0.2 }, placement: Placement::None {}, ..tiny() },
        ModelConfig { scale: ScaleConfig::Fixup {}, placement: Placement::None {}, ..tiny() },
        ModelConfig {
            embedding_scale: Some(2.0.into()),
            embedding_norm: Some(NormConfig::rms_norm()),
            position: Position::None {},
            ..tiny()
        },
        ModelConfig { norm: NormConfig::BatchNorm { eps: 1e-5, momentum: 0.1 }, ..tiny() },
        ModelConfig { norm: dyt, embedding_scale: Some(1.0.into()), ..tiny() },
        ModelConfig { init: init("mimetic"), qk_norm: NormConfig::rms_norm(), ..tiny() },
        ModelConfig { placement: Placement::MixNorm { fraction: 0.25 }, ..tiny() },
        ModelConfig { block: vec![last_block(Placement::HybridNormStar {})], ..tiny() },
        ModelConfig {
            qk_norm: NormConfig::L2Norm { eps: 1e-5 },
            attention_scale: Some(AttentionScale::HeadDim {}),
            ..tiny()
        },
    ];
    // The fraction refers to the whole model, also in a range of blocks.
    let mix = ModelConfig { block: vec![last_block(Placement::MixNorm { fraction: 0.5 })], ..tiny() };
    assert_eq!(mix.plan(11).unwrap().warnings().len(), 1);
    // With an MLP placement only, queries and keys are not normalized.
    let mlp = ModelConfig { mlp_placement: Some(Placement::HybridNorm {}), qk_norm: NormConfig::rms_norm(), ..tiny() };
    assert!(mlp.plan(11).unwrap().warnings().is_empty());
    // A base model is legitimate: sweeps over the width begin with it.
    assert!(ModelConfig { parametrization: mup(16), ..tiny() }.plan(11).unwrap().warnings().is_empty());
    // Unused norms do not matter.
    let free = ModelConfig {
        placement: Placement::None {},
        norm: NormConfig::InstanceNorm { eps: 1e-5, affine: true },
        ..tiny()
    };
    assert!(free.plan(11).unwrap().warnings().is_empty() && free.plan(11).unwrap().norms().count() == 0);
    // A zero branch output has no direction, whatever makes it zero; with a zero gain nothing is lost.
    for (name, placement) in [("zero", Placement::PreNorm {}), ("fixup", Placement::None {})] {
        let of = |weight_norm| ModelConfig { init: init(name), placement, weight_norm, ..tiny() }.plan(11);
        let problem = of(WeightNormConfig::weight_norm()).unwrap_err().to_string();
        assert!(problem.contains("has no direction") && problem.contains("scaled_weight_standardization"), "{problem}");
        assert!(of(standardized).is_ok() && of(WeightNormConfig::None {}).is_ok(), "{name}");
    }
    let mut met = Vec::new();
    for config in refused {
        let problem = config.plan(11).unwrap_err().to_string();
        let combination = COMBINATIONS
            .iter()
            .find(|r| problem.contains(r.pair) && problem.contains(r.fix))
            .unwrap_or_else(|| panic!("{problem}"));
        assert_eq!(combination.severity, Severity::Refuse);
        met.push(combination.pair);
    }
    for config in warned {
        let warnings = config.plan(11).unwrap().warnings();
        assert_eq!(warnings.len(), 1, "{config:?}");
        met.push(warnings[0].pair);
    }
    met.sort_unstable();
    let mut all: Vec<_> = COMBINATIONS.iter().map(|r| r.pair).collect();
    all.sort_unstable();
    assert_eq!(met, all, "every combination has a case here");
    assert!(tiny().plan(11).unwrap().warnings().is_empty() && deep().plan(11).unwrap().warnings().is_empty());
}

/// `UNITGAIN_WRITE_DOCS=1 cargo test --release` rewrites the page.
#[test]
fn the_docs_print_the_table() {
    let mut table = String::from("| settings | what happens | why | instead |\n|---|---|---|---|\n");
    for severity in [Severity::Refuse, Severity::Warn] {
        for combination in COMBINATIONS.iter().filter(|combination| combination.severity == severity) {
            let happens = if severity == Severity::Refuse { "refused" } else { "warning" };
            writeln!(table, "| {} | {happens} | {} | {} |", combination.pair, combination.reason, combination.fix)
                .unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/combinations.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let start = page.find("| settings |").expect("a table");
    let end = page[start..].find("\n\n").map_or(page.len(), |n| start + n + 1);
    if std::env::var_os("UNITGAIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{}{table}{}", &page[..start], &page[end..])).unwrap();
        return;
    }
    assert!(page[start..end] == table, "docs/combinations.md is not the table of the code; write it anew");
}
