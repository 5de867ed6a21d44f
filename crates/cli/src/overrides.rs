use super::printable;
use std::io::Write;
use std::path::Path;
use unitgain_study::self_test;
use unitgain_train::{RunConfig, device};

/// Options that change the loaded configurations.
#[derive(clap::Args)]
pub(crate) struct Overrides {
    /// Set a key of the configuration (repeatable)
    #[arg(long = "set", value_name = "KEY.PATH=VALUE")]
    settings: Vec<String>,
    /// The compute backend: flex, ndarray, wgpu, vulkan or cuda; the last three accept an :index, and several devices
    /// (cuda:0,cuda:1), each for a replica
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Skip the self-test of a device other than flex against the CPU
    #[arg(long)]
    skip_self_test: bool,
    /// on or off: whether norms, activations, linear layers, attention, loss and Adam are fused operations
    #[arg(long, value_name = "SWITCH", value_parser = ["on", "off"])]
    fused: Option<String>,
}

impl Overrides {
    /// Loads a configuration with the changes.
    pub(crate) fn load(&self, path: &Path) -> anyhow::Result<RunConfig> {
        Ok(RunConfig::load(path, &self.settings())?)
    }

    /// All changes as settings.
    pub(crate) fn settings(&self) -> Vec<String> {
        let mut settings = self.settings.clone();
        settings.extend(self.backend.iter().map(|name| format!("backend={name:?}")));
        settings.extend(self.fused.iter().map(|switch| format!("train.fused={}", switch == "on")));
        settings
    }

    /// Tests each device of `backend` against the CPU.
    pub(crate) fn self_test(&self, backend: &str) -> anyhow::Result<()> {
        // A name that is wrong is reported with the configuration's other faults.
        if self.skip_self_test || device::backend(backend) == "flex" || device::all_from_names(backend).is_err() {
            return Ok(());
        }
        for name in device::names(backend) {
            let mut started = false;
            self_test::ensure(name, &mut |check| {
                if !std::mem::replace(&mut started, true) {
                    let _ = writeln!(
                        printable::err(),
                        "comparing {name} with the CPU (once for each device and driver) .."
                    );
                }
                let verdict = if check.passed() { "as on the CPU" } else { "WRONG" };
                let _ = writeln!(printable::err(), "  {}: {verdict}", check.operation);
            })?;
        }
        Ok(())
    }
}
