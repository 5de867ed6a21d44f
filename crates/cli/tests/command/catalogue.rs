//! Trains every norm, placement and scale from TOML through the command line.

use super::Place;

/// The names that `unitgain configs AXIS` lists.
fn names(place: &Place, axis: &str) -> Vec<String> {
    let table = place.good(&["configs", axis]);
    // A line with a leading space continues the line before it.
    let named = table.lines().skip(1).filter(|line| !line.starts_with(' '));
    named.map(|line| line.split_whitespace().next().unwrap().to_string()).collect()
}

#[test]
fn every_placement_trains_with_every_common_norm() {
    let place = Place::new("placements");
    let placements = names(&place, "placement");
    assert!(placements.len() >= 17);
    let small = place.read("small.toml");
    for placement in &placements {
        for norm in ["layer_norm", "rms_norm", "dyt"] {
            let file = format!("{placement}.toml");
            let axes = format!("[model]\nplacement = '{placement}'\nnorm = '{norm}'");
            place.write(&file, small.replace("[model]", &axes));
            let shown = place.good(&["train", &file, "--steps", "2", "--out", "run", "--force"]);
            assert!(shown.contains("finished 2 steps"), "{placement} {norm}: {shown}");
        }
    }
}

#[test]
fn every_listed_norm_and_scale_can_be_selected_by_its_name() {
    let place = Place::new("names");
    for (axis, key) in [("norm", "model.norm"), ("norm", "model.qk_norm"), ("weight_norm", "model.weight_norm")] {
        for name in names(&place, axis) {
            // A norm over the sequence cannot normalize heads.
            if key != "model.qk_norm" || name != "instance_norm" {
                place.good(&["params", "small.toml", "--set", &format!("{key}={name}")]);
            }
        }
    }
    for scale in names(&place, "scale") {
        let scale = if scale == "constant" { "{ kind = \"constant\", value = 0.5 }".into() } else { scale };
        let scale = format!("model.scale={scale}");
        place.good(&[
            "params",
            "small.toml",
            "--set",
            &scale,
            "--set",
            "model.placement=none",
            "--set",
            "model.init=xavier",
        ]);
    }
}

#[test]
fn wrong_settings_of_the_axes_are_one_message() {
    let place = Place::new("axes");
    for (settings, expected) in [
        (vec!["model.placement=prenorm"], "Did you mean `pre_norm`?"),
        (vec!["model.placement={ kind = \"pre_norm\", fraction = 0.5 }"], "fraction"),
        (vec!["model.placement={ kind = \"mix_norm\", fraction = 1.5 }"], "model.placement.fraction = 1.5: must be"),
        (vec!["model.placement={ kind = \"admin\", omega = 0.0 }"], "model.placement.omega = 0: must be"),
        (vec!["model.norm={ kind = \"group_norm\", groups = 3 }"], "model.norm.groups = 3: must divide the width 16"),
        (vec!["model.norm={ kind = \"group_norm\", groups = 16 }"], "must leave more than one entry"),
        (vec!["model.norm={ kind = \"batch_norm\", momentum = 0.0 }"], "model.norm.momentum = 0: must be"),
        (
            vec!["model.norm=batch_norm", "model.context=1", "train.batch_size=1"],
            "train.batch_size: 1 makes a batch of",
        ),
        (vec!["model.norm=l2_norm", "model.placement=sandwich", "model.zero_writers=true"], "cannot be combined"),
        (vec!["model.scale=fixup"], "cannot be combined"),
        (vec!["model.scale={ kind = \"nfnet\", alpha = -1.0 }"], "model.scale.alpha = -1: must be"),
        (vec!["model.attention_scale=0"], "model.attention_scale.value = 0: must be"),
        (vec!["model.embedding_scale={ kind = \"learned\", init = 0.0 }"], "model.embedding_scale.init = 0: must be"),
        (vec!["model.qk_norm=instance_norm"], "cannot be combined"),
        (vec!["model.qk_norm={ kind = \"group_norm\", groups = 8 }"], "model.qk_norm.groups = 8: must leave"),
        (vec!["model.weight_norm=weight_norm", "model.zero_writers=true"], "cannot be combined"),
    ] {
        let mut arguments = vec!["train", "small.toml"];
        for setting in &settings {
            arguments.extend(["--set", *setting]);
        }
        let message = place.bad(&arguments);
        assert!(message.contains(expected), "{message:?} does not say {expected:?}");
        assert!(!place.0.join("runs").exists(), "{settings:?}");
    }
}

#[test]
fn what_looks_ahead_is_warned_of_and_does_not_write_text() {
    let place = Place::new("ahead");
    for (norm, writes) in [("batch_norm", true), ("instance_norm", false)] {
        let norm = format!("model.norm={norm}");
        let arguments =
            ["train", "small.toml", "--steps", "2", "--set", &norm, "--set", "train.accumulate=2", "--out", "run"];
        let output = place.run(&[&arguments[..], &["--force"]].concat());
        let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && warnings.contains("later tokens"), "{warnings}");
        assert_eq!(warnings.contains("accumulate"), writes, "{warnings}");
        if writes {
            place.good(&["generate", "run", "--prompt", "1", "--tokens", "4"]);
        } else {
            assert!(place.bad(&["generate", "run", "--prompt", "1"]).contains("instance_norm"));
        }
    }
}

#[test]
fn sanity_prints_every_check_and_its_verdict() {
    let place = Place::new("sanity");
    let table = place.good(&["sanity", "--seeds", "3"]);
    for letter in ["[a]", "[b]", "[c]", "[d]", "[e]", "[f]"] {
        assert!(table.lines().any(|line| line.starts_with(letter) && line.ends_with("holds")), "{table}");
    }
    let json: serde_json::Value = serde_json::from_str(&place.good(&["sanity", "--seeds", "2", "--json"])).unwrap();
    let checks = json.as_array().unwrap();
    assert!(checks.len() >= 15 && checks.iter().all(|check| check["passed"] == true));
    assert!(checks.iter().all(|check| check["measured"].as_array().unwrap().len() == 2));
    assert!(place.bad(&["sanity", "--seeds", "0"]).contains("0"));
    assert!(place.bad(&["sanity", "--backend", "tpu"]).contains("unknown backend"));
}
