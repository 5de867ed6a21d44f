//! Tests of the reference tests: after changing any setting, number or tensor of a case, its test must fail.

use crate::common::golden::{Case, Check, cases, categories, is_own};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

const CHECKS: [(&str, Check); 9] = [
    ("agc_optim", crate::train::optimizers::check),
    ("blocks", crate::model::blocks::check),
    ("extras", crate::init::extras::check),
    ("init", crate::init::golden::check),
    ("models", crate::model::presets::check),
    ("mup", crate::mup::golden::check),
    ("norms", crate::norms::golden::check),
    ("sanity", crate::study::sanity::check),
    ("trajectories", crate::train::trajectories::check),
];

/// Whether a test fails on a case.
fn fails(case: &Case, check: Check) -> bool {
    catch_unwind(AssertUnwindSafe(|| case.hold(check))).is_err()
}

/// Values that do not affect their case, with the reason.
const DECIDES_NOTHING: [(&str, &str, &str); 17] = [
    ("agc_optim/agc_*", "tensors/g3", "one number, clipped to the same size"),
    ("agc_optim/agc_*", "tensors/g4", "units of one number, clipped to the same size"),
    ("agc_optim/opt_adam*", "settings/eps", "1e-6 beside gradients of size 1"),
    ("norms/batchnorm_edges", "settings/momentum", "no running statistics are given"),
    ("norms/batchnorm_m1_error", "settings/momentum", "no step is taken"),
    ("norms/*", "settings/eps", "1e-6 and less beside the size of the inputs"),
    ("norms/*_d1", "tensors/x", "one number is its own mean and, but for the sign, its own size"),
    ("norms/layernorm_d1", "tensors/gamma", "multiplies 0"),
    ("norms/*_edges", "expected/huge.loss", "the tolerance of the reference is 50"),
    ("norms/layernorm_edges", "tensors/constant_big.*", "the tolerance of the reference is 0.2"),
    ("norms/dyt_edges", "tensors/*", "where tanh is 1"),
    ("norms/weightnorm_*", "settings/per_row", "one length of a matrix is passed over by name"),
    ("extras/lsuv_*", "settings/*", "one division is exact: no iteration follows, whatever the tolerance"),
    ("extras/u_mup*", "settings/heads", "no number of the table is of heads"),
    ("init/sparse_*", "expected/rows/*/sparsity", "rounded up to the same count"),
    ("init/depth_width_tables", "expected/fixup/*/m_layers_per_branch", "of one block the factor is 1"),
    ("blocks/*", "settings/norm_eps", "1e-5 beside a variance of 1, or no norm"),
];

/// Whether a name matches a pattern in which `*` is any text.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name
            .strip_prefix(before)
            .is_some_and(|rest| (0..=rest.len()).any(|n| rest.is_char_boundary(n) && fits(after, &rest[n..]))),
    }
}

/// The number of changes to a case, those that its test does not notice, and the skipped values by name.
fn survivors(category: &str, case: &Case, check: Check) -> (usize, Vec<String>, BTreeMap<String, usize>) {
    case.hold(check);
    let (changed, passed) = case.changed();
    let count = changed.len();
    let name = format!("{category}/{}", case.name);
    let decides = |path: &str| !DECIDES_NOTHING.iter().any(|(of, part, _)| fits(of, &name) && fits(part, path));
    let left = changed.into_iter().filter(|(_, case)| !fails(case, check)).map(|(path, _)| path);
    (count, left.filter(|path| decides(path)).collect(), passed)
}

/// The message of the panic.
fn complaint(case: &Case, check: Check) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| case.hold(check))).expect_err("a refusal");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn every_folder_of_cases_has_a_test() {
    let known: Vec<&str> = CHECKS.iter().map(|(category, _)| *category).collect();
    for category in categories() {
        assert!(known.contains(&&*category), "no test walks the cases of {category:?}");
    }
}

#[test]
fn what_no_test_reads_is_refused_by_name() {
    if !is_own() {
        return;
    }
    // A fast case of each category.
    let picked = [
        ("agc_optim", "agc_0.01"),
        ("blocks", "single_pre_ln"),
        ("extras", "mimetic"),
        ("init", "sparse_init"),
        ("mup", "rules_two_forms"),
        ("norms", "layernorm_basic"),
    ];
    for (category, name) in picked {
        let check = CHECKS.iter().find(|(known, _)| *known == category).unwrap().1;
        let case = || cases(category).into_iter().find(|case| case.name == name).unwrap();
        case().hold(check);
        for part in ["settings", "expected"] {
            let said = complaint(&case().with_number(part, "of_another_paper"), check);
            assert!(said.contains(&format!("{part}/of_another_paper")), "{category}: {said}");
        }
        let said = complaint(&case().with_tensor("of_another_paper"), check);
        assert!(said.contains("of_another_paper"), "{category}: {said}");
        let said = complaint(&case().of_kind("cautious_decay"), check);
        assert!(said.contains("no test of kind \"cautious_decay\""), "{category}: {said}");
    }
}

/// All fast cases; together they take some seconds.
#[test]
fn every_change_of_a_case_fails_its_test() {
    // The list of values without effect is for the repository's cases.
    if !is_own() {
        return;
    }
    let picked = [
        "agc_optim/",
        "blocks/single_pre_ln",
        "blocks/single_sub_ln",
        "blocks/single_ln_scaling",
        "extras/",
        "init/bias_and_misc",
        "init/delta_orthogonal_2d",
        "init/fan_table",
        "init/orthogonal_from_gaussian",
        "init/sparse_init",
        "init/torch_calculate_gain",
        "init/truncated_normal",
        "mup/rules_two_forms",
        "norms/",
    ];
    for (category, check) in CHECKS.iter().filter(|(category, _)| picked.iter().any(|part| part.starts_with(category)))
    {
        for case in cases(category) {
            let name = format!("{category}/{}", case.name);
            if picked.iter().any(|part| name.starts_with(part)) {
                let (count, left, _) = survivors(category, &case, *check);
                assert!(count > 0 && left.is_empty(), "{name}: the test still passes with other {left:?}");
            }
        }
    }
}

#[test]
#[ignore = "minutes: every case with each of its numbers changed; UNITGAIN_LEAVES picks categories or cases"]
fn every_change_of_every_case_fails_its_test() {
    let picked = std::env::var("UNITGAIN_LEAVES").unwrap_or_default();
    for (category, check) in CHECKS {
        for case in cases(category) {
            let name = format!("{category}/{}", case.name);
            if !picked.split(',').any(|part| name.starts_with(part)) {
                continue;
            }
            let (count, survivors, passed) = survivors(category, &case, check);
            println!(
                "{name} ({}): {count} changed, survive {}: {survivors:?}; passed over {passed:?}",
                case.kind(),
                survivors.len()
            );
        }
    }
}
