//! `bench`, `devices`, and the switch of fused operations.

use super::{Place, records};

#[test]
fn bench_measures_each_configuration_and_the_machine() {
    let place = Place::new("bench");
    let small = place.read("small.toml");
    place.write("post.toml", small.replace("[model]", "[model]\nplacement = 'post_norm'"));
    let arguments = ["bench", "small.toml", "post.toml", "--rounds", "2", "--steps", "2", "--warmup", "1"];
    let table = place.good(&arguments);
    for part in ["small", "post", "tokens/s", "GFLOP/s", "rms_norm, forward and backward"] {
        assert!(table.contains(part), "{table}");
    }
    let json = place.good(&[&arguments[..], &["--json", "--fused", "off"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for measured in json["configurations"].as_array().unwrap() {
        let number = |key: &str| measured[key].as_f64().unwrap();
        assert!(number("ms") > 0.0 && number("flops") > 0.0 && number("utilization") > 0.0, "{measured}");
        let parts = number("forward") + number("backward") + number("optimizer") + number("logging");
        assert!(parts > 0.0 && number("tokens") == 64.0);
        assert!((1.0..=4.0).contains(&number("replicas")), "a batch of 4");
    }
    assert!(json["machine"]["product"].as_f64().unwrap() > 1e6 && json["threads"].as_u64().unwrap() > 0);
    assert!(place.bad(&["bench", "missing.toml"]).contains("missing.toml"));
    assert!(place.bad(&["bench", "small.toml", "--rounds", "0"]).contains('0'));
    assert!(!place.0.join("runs").exists(), "a measurement leaves no run");
}

/// The memory of a step is that of the step before.
#[cfg(all(target_os = "linux", feature = "mimalloc"))]
#[test]
fn a_step_in_steady_state_takes_no_new_pages() {
    let place = Place::new("faults");
    let settings = ["model.d_model=128", "model.context=128", "train.batch_size=16"];
    let mut arguments = vec!["bench", "small.toml", "--rounds", "4", "--steps", "5", "--warmup", "10", "--json"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let json: serde_json::Value = serde_json::from_str(&place.good(&arguments)).unwrap();
    let measured = &json["configurations"][0];
    assert!(measured["page_faults"].as_f64().unwrap() < 50.0, "{measured}");
}

#[test]
fn devices_lists_what_is_compiled_in() {
    let place = Place::new("devices");
    let table = place.good(&["devices"]);
    assert!(table.lines().any(|line| line.starts_with("flex") && line.contains("yes") && line.contains("f32")));
    let json: serde_json::Value = serde_json::from_str(&place.good(&["devices", "--json"])).unwrap();
    let names: Vec<_> = json.as_array().unwrap().iter().map(|row| row["backend"].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["flex", "ndarray"]);
    assert!(names.contains(&"wgpu") && names.contains(&"vulkan") && names.contains(&"cuda"));
}

#[test]
fn a_run_without_fused_operations_is_the_same_but_for_rounding() {
    let place = Place::new("fused");
    let run = |switch: &str| {
        let constant = "schedule.kind=constant";
        place.good(&["train", "small.toml", "--fused", switch, "--steps", "20", "--set", constant, "--out", switch]);
        records(&place, switch)
    };
    let losses = |records: Vec<serde_json::Value>| -> Vec<f64> {
        records.iter().map(|record| record["loss"].as_f64().unwrap()).collect()
    };
    let (on, off) = (losses(run("on")), losses(run("off")));
    assert_eq!(on.len(), 20);
    assert!(on.iter().zip(&off).all(|(a, b)| (a - b).abs() < 1e-3), "{on:?} {off:?}");
    assert!(place.read("off/config.toml").contains("fused = false"));
    assert!(place.bad(&["train", "small.toml", "--fused", "maybe"]).contains("maybe"));
    let message = place.bad(&["train", "--resume", "on", "--fused", "off", "--steps", "30"]);
    assert!(message.contains("train.fused"), "{message}");
}

#[test]
fn probe_measures_depths_and_draws_them() {
    let place = Place::new("probe");
    let table = place.good(&["probe", "small.toml", "--seeds", "2"]);
    assert!(table.contains("stream rms") && table.contains("singular values") && table.contains("+-"), "{table}");
    let arguments = ["probe", "small.toml", "--depths", "1,2", "--no-spectrum"];
    let table = place.good(&[&arguments[..], &["--plot", "probe.svg"]].concat());
    assert!(table.contains("small, 2 blocks") && table.contains("exponents over depth"), "{table}");
    let drawn = place.read("probe.svg");
    assert!(drawn.starts_with("<svg") && drawn.contains("rms of the stream"));
    let json: serde_json::Value = serde_json::from_str(&place.good(&[&arguments[..], &["--json"]].concat())).unwrap();
    let depths: Vec<_> =
        json.as_array().unwrap().iter().map(|m| m["seeds"][0]["blocks"].as_array().unwrap().len()).collect();
    assert_eq!(depths, [1, 2]);
    // Dead parameters are named, and NaN is a failure whatever the loss is.
    let set = |settings: &[&'static str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        place.run(&["probe", "small.toml", "--no-spectrum"].into_iter().chain(settings).collect::<Vec<_>>())
    };
    let silent = set(&["model.tie_embeddings=false", "model.zero_readout=true"]);
    let said = String::from_utf8_lossy(&silent.stdout);
    assert!(silent.status.success() && said.contains("2 of 2 blocks have no gradient"), "{said}");
    let large = set(&["model.scale={kind='constant',value=1e30}"]);
    let said = String::from_utf8_lossy(&large.stdout);
    assert!(large.status.code() == Some(1) && said.contains("overflows"), "{said}");
    assert!(place.bad(&["probe", "small.toml", "--depths", "0"]).contains("n_layers"));
    assert!(place.bad(&["probe", "small.toml", "--plot", "missing/probe.svg"]).contains("missing/probe.svg"));
}

#[test]
fn train_calibrates_before_the_first_step() {
    let place = Place::new("calibrate");
    let text = place.good(&["train", "small.toml", "--set", "init.calibrate=lsuv", "--out", "lsuv"]);
    assert!(text.contains("calibrated: variance of the output of blocks.0.attention.query.weight"), "{text}");
    assert!(place.read("lsuv/init.json").contains("\"after\""));
    assert!(place.read("lsuv/config.toml").contains("tolerance"));
    let message = place.bad(&["train", "small.toml", "--set", "init.calibrate=admin", "--out", "other"]);
    assert!(message.contains("init.calibrate.kind") && message.contains("placement"), "{message}");
    let message = place.bad(&["train", "small.toml", "--set", "init.calibrate=magic", "--out", "other"]);
    assert!(message.contains("lsuv"), "{message}");
    assert!(!place.0.join("other").exists());
}

#[test]
fn coord_check_ends_in_a_verdict_and_an_exit_code() {
    let place = Place::new("coord-check");
    let mup = "model.parametrization={kind='mup',base_width=8}";
    let arguments = ["coord-check", "small.toml", "--widths", "8,16,32", "--steps", "2", "--seeds", "1"];
    let table = place.good(&[&arguments[..], &["--set", mup, "--plot", "check.svg", "--tolerance", "2"]].concat());
    assert!(table.contains("holds") && table.contains("weight decay"), "{table}");
    assert!(place.read("check.svg").contains("rms of the change"));
    let output = place.run(&[&arguments[..], &["--tolerance", "-9", "--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "a slope above the tolerance is a negative verdict");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["passed"], false);
    let still = place.run(&[&arguments[..], &["--set", "optimizer.lr=1e-30"]].concat());
    assert_eq!(still.status.code(), Some(1));
    let said = String::from_utf8_lossy(&still.stdout);
    assert!(said.contains("nothing moved") && said.contains("STILL") && !said.contains("holds"), "{said}");
    // Over depths, a dead branch does not count as independent of the depth.
    let dead = ["coord-check", "small.toml", "--depths", "1,2", "--steps", "2", "--seeds", "1", "--tolerance", "9"];
    assert!(place.good(&dead).contains("holds: "), "all move");
    let dead = place.run(&[&dead[..], &["--set", "model.scale={kind='constant',value=1e-30}"]].concat());
    let said = String::from_utf8_lossy(&dead.stdout);
    assert_eq!(dead.status.code(), Some(1), "{said}");
    assert!(said.contains("undecided: ") && said.contains("first block, mlp"), "{said}");
    assert!(place.bad(&["coord-check", "small.toml", "--widths", "8"]).contains("two"));
    assert!(place.bad(&["probe", "small.toml", "--plot", "probe.png"]).contains(".svg"));
    for (setting, key) in [
        ("model.init={kind='truncated_normal',cut=1e-6}", "cut"),
        ("model.init={kind='kaiming',slope=1e200}", "slope"),
        ("model.init={kind='gpt2',std=1e-300}", "std"),
        ("model.init={kind='xavier',gain={kind='torch',activation='gelu'}}", "gain"),
    ] {
        let message = place.bad(&["params", "small.toml", "--set", setting]);
        assert!(message.contains(key), "{message}");
    }
}
