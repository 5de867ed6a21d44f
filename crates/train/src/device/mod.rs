//! Devices by name, and the threads of the CPU.

pub mod memory;

use crate::config::MOST_THREADS;
use crate::{Error, RunConfig, folder::metrics};
use burn::tensor::{DType, Device, Tensor};
use std::cell::Cell;
use std::error::Error as _;
use std::panic::AssertUnwindSafe;
use std::sync::{Once, OnceLock};
use unitgain_kernels::{composed, is_fused};

/// Name of each backend, whether it is compiled in, and whether it takes an index.
const BACKENDS: [(&str, bool, bool); 5] = [
    ("flex", cfg!(feature = "flex"), false),
    ("ndarray", cfg!(feature = "ndarray"), false),
    ("wgpu", cfg!(feature = "wgpu-plain"), true),
    ("vulkan", cfg!(feature = "vulkan"), true),
    ("cuda", cfg!(feature = "cuda"), true),
];

/// Names of the backends that are compiled in.
pub fn compiled() -> Vec<&'static str> {
    BACKENDS.iter().filter(|(_, compiled, _)| *compiled).map(|(name, ..)| *name).collect()
}

/// The plain (not autodiff) device of `name`: a backend, or `backend:index` for the GPU backends (`wgpu:1` is the
/// second discrete GPU).
///
/// burn's own default device depends on what is compiled in, and panics without an adapter.
///
/// # Errors
/// [`Error::Device`] for an unknown backend, one that is not compiled in, or a bad index.
pub fn from_name(name: &str) -> Result<Device, Error> {
    if name.contains(',') {
        return Err(error(name, "several devices, where one is used; name one"));
    }
    let (backend, index) = parsed(name)?;
    let device = create(backend, index).ok_or_else(|| error(name, "not compiled in"))?;
    if !is_host(backend) {
        answers(&device).map_err(|problem| error(name, problem))?;
    }
    Ok(device)
}

fn error(name: &str, problem: impl Into<String>) -> Error {
    Error::Device { name: name.into(), problem: problem.into() }
}

/// The backend, which is compiled in, and the index of a name.
fn parsed(name: &str) -> Result<(&str, Option<usize>), Error> {
    let (backend, index) = match name.split_once(':') {
        Some((backend, index)) => {
            let problem = || error(name, format!("{index:?} is not a device index; write e.g. cuda:0"));
            (backend, Some(index.parse().map_err(|_| problem())?))
        }
        None => (name, None),
    };
    let Some((_, is_compiled, indexed)) = BACKENDS.iter().find(|(known, ..)| *known == backend) else {
        let known: Vec<_> = BACKENDS.iter().map(|(name, ..)| *name).collect();
        return Err(error(name, format!("unknown backend. Known: {}", known.join(", "))));
    };
    if !is_compiled {
        let all = compiled().join(", ");
        let problem = format!("not compiled in. Build with `--features {backend}`; this build has: {all}");
        return Err(error(name, problem));
    }
    if index.is_some() && !indexed {
        return Err(error(name, format!("{backend} has one device and takes no index; write {backend:?}")));
    }
    Ok((backend, index))
}

/// The plain devices of a list of names such as `cuda:0,cuda:1`, each of which has a replica; the model is on the first.
/// A GPU may come several times.
///
/// # Errors
/// [`Error::Device`] as [`from_name`] for each name, and for devices of several backends or several of the CPU.
pub fn all_from_names(names: &str) -> Result<Vec<Device>, Error> {
    if names.contains(',') {
        if self::names(names).any(str::is_empty) {
            return Err(error(names, "a name is missing beside a comma; write e.g. cuda:0,cuda:1"));
        }
        let parsed: Vec<_> = self::names(names).map(parsed).collect::<Result<_, _>>()?;
        let (first, count) = (backend(names), parsed.len());
        if let Some((other, _)) = parsed.iter().find(|(other, _)| *other != first) {
            let problem = "are devices of different kinds; the replicas of a run need devices of one kind";
            return Err(error(names, format!("{first} and {other} {problem}")));
        }
        if is_host(first) {
            let problem = format!("{first} is one device; for {count} replicas on it write train.replicas = {count}");
            return Err(error(names, problem));
        }
    }
    self::names(names).map(from_name).collect()
}

/// The names of a list of devices.
pub fn names(names: &str) -> impl Iterator<Item = &str> {
    names.split(',').map(str::trim)
}

/// The backend of a list of devices: `cuda` of `cuda:0,cuda:1`.
pub fn backend(names: &str) -> &str {
    let first = self::names(names).next().unwrap_or_default();
    first.split_once(':').map_or(first, |(backend, _)| backend)
}

/// All backends, and whether each is compiled in.
pub fn backends() -> Vec<(&'static str, bool)> {
    BACKENDS.iter().map(|(name, compiled, _)| (*name, *compiled)).collect()
}

/// Description of a device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Found {
    /// Name of the adapter; of the backend on the CPU.
    pub name: String,
    /// Target of its kernels.
    pub target: String,
    /// Memory in bytes, where the system tells; on the CPU, of the machine.
    pub memory: Option<u64>,
    /// Supported float types.
    pub types: Vec<&'static str>,
}

impl Found {
    /// Describes a device of `backend`.
    pub fn of(backend: &str, device: &Device) -> Self {
        let types = [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16)];
        let types =
            types.into_iter().filter(|(_, dtype)| device.supports_dtype(*dtype)).map(|(name, _)| name).collect();
        #[cfg(any(feature = "wgpu-plain", feature = "vulkan", feature = "cuda"))]
        if let Some(identity) = device.identity() {
            let address = identity.physical.and_then(|card| card.pci_address);
            // Only the driver of AMD cards has this file.
            let memory = address.and_then(|address| {
                let file = format!("/sys/bus/pci/devices/{address}/mem_info_vram_total");
                std::fs::read_to_string(file).ok()?.trim().parse().ok()
            });
            return Self { name: identity.name, target: identity.fingerprint, memory, types };
        }
        let memory = metrics::total_memory().filter(|_| is_host(backend));
        Self { name: "CPU".into(), target: std::env::consts::ARCH.into(), memory, types }
    }
}

/// The devices of a backend that is compiled in.
///
/// # Errors
/// The reason, if there is none.
pub fn found(backend: &str) -> Result<Vec<Found>, String> {
    let devices = guarded(|| enumerate(backend).iter().map(|device| Found::of(backend, device)).collect::<Vec<_>>());
    match devices {
        Ok(devices) if !devices.is_empty() => Ok(devices),
        Ok(_) | Err(_) => Err("no device found: no adapter, or no driver for it".into()),
    }
}

thread_local! {
    /// Whether panics of this thread become errors.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// The modes of a thread, for other threads that work for it: whether operations are fused, and whether panics become errors.
#[derive(Clone, Copy)]
pub(crate) struct Modes {
    is_fused: bool,
    is_guarded: bool,
}

impl Modes {
    /// Those of this thread.
    pub(crate) fn here() -> Self {
        Self { is_fused: is_fused(), is_guarded: IS_GUARDED.get() }
    }

    /// Calls `f` on another thread in these modes. A panic continues on the thread that waits for `f`.
    pub(crate) fn call<R>(self, f: impl FnOnce() -> R) -> R {
        struct Restore(bool);
        impl Drop for Restore {
            fn drop(&mut self) {
                IS_GUARDED.set(self.0);
            }
        }
        let _restore = Restore(IS_GUARDED.replace(self.is_guarded));
        if self.is_fused { f() } else { composed(f) }
    }
}

/// Calls `f` and turns a panic into its message, in one line, because burn reports failures of a device by panics. The
/// panic itself is not printed; panics of other threads are.
pub fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                shown(panic)
            }
        }));
    });
    let before = IS_GUARDED.replace(true);
    let result = std::panic::catch_unwind(AssertUnwindSafe(f));
    IS_GUARDED.set(before);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
        let said = text.lines().map(str::trim).take_while(|line| !line.starts_with("Backtrace"));
        let said: Vec<&str> = said.filter(|line| !line.is_empty() && *line != "Caused by:").collect();
        said.join("; ").chars().take(300).collect()
    })
}

/// The number of threads used where a configuration gives none: `RAYON_NUM_THREADS`, or all cores. The first call
/// starts them.
///
/// # Errors
/// [`Error::Value`] if the system refuses threads, or the variable asks for too many; any computation would then panic.
pub fn threads() -> Result<usize, Error> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        const VARIABLE: &str = "RAYON_NUM_THREADS";
        let asked = std::env::var(VARIABLE).unwrap_or_default();
        if asked.trim().parse::<usize>().is_ok_and(|n| n > MOST_THREADS) {
            return Err(format!("{VARIABLE} = {asked} must be at most {MOST_THREADS}"));
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = asked.trim().parse().ok().filter(|n| *n > 0).unwrap_or_else(cores);
        let fewer = |problem: &str| format!("{problem}; or take fewer with {VARIABLE}=1");
        memory::check_threads(count).map_err(|problem| fewer(&no_threads(&problem)))?;
        match rayon::ThreadPoolBuilder::new().num_threads(count).build_global() {
            Ok(()) => Ok(()),
            // The pool exists already, which is fine.
            Err(e) if e.source().is_none() => Ok(()),
            Err(e) => Err(fewer(&no_threads(&e.to_string()))),
        }
    });
    match started {
        Ok(()) => Ok(rayon::current_num_threads()),
        Err(problem) => Err(Error::value("threads", "", problem)),
    }
}

/// Why no more threads can be started, and what to do.
pub(crate) fn no_threads(problem: &str) -> String {
    format!(
        "the system starts no more threads ({problem}). Raise its limit of processes (ulimit -u, pids.max of the control \
         group) or of memory (ulimit -v)"
    )
}

/// Calls `work` on a pool of `threads` threads, or the global pool for 0. Work runs on a pool thread, because an
/// outside caller would block, and wake all workers, at each parallel operation.
///
/// # Errors
/// [`Error::Value`] if the system refuses threads.
pub fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> Result<R, Error> {
    let usual = self::threads()?;
    // Too many threads are reported by the check of the configuration, with its other faults.
    if threads == 0 || threads > MOST_THREADS || threads == usual {
        return Ok(rayon::scope(|_| work()));
    }
    let refused =
        |problem: String| Error::value("threads", "", format!("{threads}: {}; or take fewer", no_threads(&problem)));
    memory::check_threads(threads).map_err(refused)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| refused(e.to_string()))?;
    Ok(pool.install(work))
}

/// Calls `work` with the backend, `threads` and `train.fused` of a configuration.
pub fn compute<R: Send>(config: &RunConfig, work: impl FnOnce() -> Result<R, Error> + Send) -> Result<R, Error> {
    let work = || if config.train.fused { work() } else { composed(work) };
    if is_host(&config.backend) {
        on_threads(config.threads, work)?
    } else {
        guarded(work).unwrap_or_else(|said| Err(failure(&config.backend, &said)))
    }
}

/// The error for a device that stopped, with advice.
pub(crate) fn failure(name: &str, said: &str) -> Error {
    let lower = said.to_lowercase();
    let problem = match ["memory", "alloc"].iter().any(|word| lower.contains(word)) {
        true => format!(
            "out of memory. Take fewer sequences (train.batch_size, with more train.accumulate), a shorter \
             model.context or a smaller model. It said: {said}"
        ),
        false => format!("the device stopped. Check its driver, and that no other program uses it up. It said: {said}"),
    };
    Error::Device { name: name.into(), problem }
}

#[allow(unused_variables)]
fn enumerate(backend: &str) -> Vec<Device> {
    use burn::tensor::DeviceType;
    let kind = match backend {
        #[cfg(feature = "flex")]
        "flex" => DeviceType::Flex,
        #[cfg(feature = "ndarray")]
        "ndarray" => DeviceType::NdArray,
        #[cfg(feature = "wgpu-plain")]
        "wgpu" => DeviceType::Wgpu,
        #[cfg(feature = "vulkan")]
        "vulkan" => DeviceType::Vulkan,
        #[cfg(feature = "cuda")]
        "cuda" => DeviceType::Cuda,
        _ => return Vec::new(),
    };
    #[allow(unreachable_code)]
    Device::enumerate(kind).into_vec()
}

/// Checks that the device can multiply: burn panics without an adapter or driver.
fn answers(device: &Device) -> Result<(), String> {
    let product = guarded(|| {
        let a = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], device);
        a.clone().matmul(a).into_data().iter::<f32>().collect::<Vec<_>>()
    });
    match product {
        Ok(product) if product == [7.0, 10.0, 15.0, 22.0] => Ok(()),
        Ok(product) => Err(format!("the device computes a wrong matrix product ({product:?}); update its driver")),
        Err(_) => Err("there is no such device, or its driver does not work; check it with the vendor's tool".into()),
    }
}

/// Whether the device's tensors are in host memory and its operations run on rayon.
pub fn is_host(name: &str) -> bool {
    matches!(name, "flex" | "ndarray")
}

#[allow(unused_variables, deprecated)]
fn create(backend: &str, index: Option<usize>) -> Option<Device> {
    #[cfg(any(feature = "wgpu-plain", feature = "vulkan"))]
    let kind = index.map_or(burn::tensor::DeviceKind::DefaultDevice, burn::tensor::DeviceKind::DiscreteGpu);
    match backend {
        #[cfg(feature = "flex")]
        "flex" => Some(Device::flex()),
        #[cfg(feature = "ndarray")]
        "ndarray" => Some(Device::ndarray()),
        #[cfg(feature = "wgpu-plain")]
        "wgpu" => Some(Device::wgpu(kind)),
        #[cfg(feature = "vulkan")]
        "vulkan" => Some(Device::vulkan(kind)),
        #[cfg(feature = "cuda")]
        "cuda" => Some(Device::cuda(index.unwrap_or(0))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_stops_says_what_to_do() {
        assert_eq!(guarded(|| 7), Ok(7));
        let stop = |said: &'static str| guarded(|| panic!("{said}")).unwrap_err();
        let said = stop("Error while reading\nCaused by:\n  Out of memory\nBacktrace:\n  lines");
        assert_eq!(said, "Error while reading; Out of memory");
        assert!(failure("wgpu", &said).to_string().contains("train.batch_size"));
        let message = failure("wgpu", &stop("device lost")).to_string();
        assert!(message.contains("driver") && !message.contains("train.batch_size"), "{message}");
    }

    #[cfg(feature = "flex")]
    #[test]
    fn a_device_that_computes_answers() {
        assert_eq!(answers(&Device::flex()), Ok(()));
    }

    #[test]
    fn a_bad_name_says_what_is_allowed() {
        let problem = |name| from_name(name).unwrap_err().to_string();
        assert!(problem("gpu").contains("Known: flex, ndarray, wgpu, vulkan, cuda"));
        assert!(problem("flex:1").contains("takes no index"));
        assert!(problem("cuda:x").contains("not a device index"));
        assert!(problem("wgpu:0,wgpu:1").contains("several devices, where one is used"));
        let problem = |names| all_from_names(names).unwrap_err().to_string();
        #[cfg(not(feature = "cuda"))]
        assert!(problem("flex,cuda:0").contains("--features cuda"));
        #[cfg(feature = "wgpu-plain")]
        assert!(problem("flex,wgpu").contains("flex and wgpu are devices of different kinds"));
        assert!(problem("flex, flex").contains("write train.replicas = 2"));
        assert!(problem("gpu:0,gpu:1").contains("unknown backend"));
        assert!(problem("wgpu,").contains("a name is missing") && problem("").contains("unknown backend"));
        #[cfg(not(feature = "cuda"))]
        assert!(problem("cuda:0").contains("--features cuda"));
    }
}
