//! Tests of the examples.

use unitgain_model::Placement;

#[path = "../examples/custom_loop.rs"]
mod custom_loop;
#[path = "../examples/gradient_profile.rs"]
mod gradient_profile;
#[path = "../examples/own_block.rs"]
mod own_block;

#[test]
fn the_custom_loop_learns_to_count() {
    let (first, last) = custom_loop::run().unwrap();
    assert!(first > 2.0 && last < 0.5 * first, "{first} -> {last}");
}

#[test]
fn post_norm_is_top_heavy_at_init() {
    let ratio = |placement| {
        let norms = gradient_profile::profile(placement).unwrap();
        norms[norms.len() - 1] / norms[0]
    };
    let (pre, post, deep) =
        (ratio(Placement::PreNorm {}), ratio(Placement::PostNorm {}), ratio(Placement::DeepNorm {}));
    println!("last/first gradient: pre_norm {pre:.2}, post_norm {post:.2}, deep_norm {deep:.2}");
    assert!(post > 1.0 && pre < 1.0 && post > 2.0 * deep, "{pre} {post} {deep}");
}

#[test]
fn a_block_of_ones_own_learns_and_transfers() {
    use unitgain_study::coord_check::Conclusion;
    let (losses, report) = own_block::run().unwrap();
    assert!(losses[99] < 0.3 * losses[0], "{} -> {}", losses[0], losses[99]);
    assert_eq!(report.conclusion(), Conclusion::Holds, "{report:#?}");
    // The block outputs must be among the compared activations.
    assert!(report.layers.iter().any(|layer| layer.name == "block 2, stream"), "{report:#?}");
}
