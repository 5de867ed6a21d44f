use super::printable;
use std::io::Write;
use std::path::Path;
use unitgain_study::self_test;
use unitgain_train::{RunConfig, device};

/// What a command line may change of the configurations that it reads.
#[derive(clap::Args)]
pub(crate) struct Overrides {
    /// Change a key of the configuration; may be repeated
    #[arg(long = "set", value_name = "KEY.PATH=VALUE")]
    settings: Vec<String>,
    /// Where to compute: flex, ndarray, wgpu, vulkan or cuda, the last three with an optional :index
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Do not compare a device other than flex with the CPU first
    #[arg(long)]
    skip_self_test: bool,
    /// on or off: whether norms, activations, linear layers, attention, loss and Adam are one operation each
    #[arg(long, value_name = "SWITCH", value_parser = ["on", "off"])]
    fused: Option<String>,
}

impl Overrides {
    /// The configuration of a file with the changes.
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

    /// Refuses a device that computes something else than the CPU.
    pub(crate) fn self_test(&self, backend: &str) -> anyhow::Result<()> {
        let is_known = device::compiled().contains(&backend.split(':').next().unwrap_or_default());
        // A backend that there is not is told with all else that is wrong with the configuration.
        if self.skip_self_test || !is_known {
            return Ok(());
        }
        let mut started = false;
        self_test::ensure(backend, &mut |check| {
            if !std::mem::replace(&mut started, true) {
                let _ =
                    writeln!(printable::err(), "comparing {backend} with the CPU (once for each device and driver) ..");
            }
            let verdict = if check.passed() { "as on the CPU" } else { "WRONG" };
            let _ = writeln!(printable::err(), "  {}: {verdict}", check.operation);
        })?;
        Ok(())
    }
}
