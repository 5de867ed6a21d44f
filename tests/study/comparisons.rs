//! The shipped comparisons.

use std::path::Path;
use unitgain_study::compare::Comparison;

#[test]
fn every_shipped_comparison_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/compare");
    for blocks in [6, 24, 48] {
        let file = folder.join(format!("{blocks}_blocks.toml"));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with('#') && text.contains("expect"), "{blocks}: what to expect");
        let comparison = Comparison::load(&[file], &[], 2).unwrap();
        assert_eq!(comparison.jobs.len(), 12, "six variants and two seeds");
        assert!(comparison.jobs.iter().all(|job| job.config.model.n_layers == blocks));
        let keys: Vec<&str> = comparison.differences.iter().map(|difference| difference.key.as_str()).collect();
        assert!(["model.placement", "schedule.warmup"].iter().all(|key| keys.contains(key)), "{keys:?}");
    }
}
