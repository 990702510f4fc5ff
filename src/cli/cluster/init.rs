//! `streamdoor cluster init`: makes the stores, the secret, and the permissions to paste.

use streamdoor::nats::permissions::Permissions;
use streamdoor::nats::secret::{self, Made};
use streamdoor::nats::stores::Stores;

use super::super::CliError;
use super::super::console::print_out;
use super::super::doctor::{Finding, cluster_sync};
use super::super::options::spelled;
use super::super::words::{counted, in_units};
use super::{Options, refused, with_link};

/// Makes the stores. The secret is first: without it, nothing is changed.
pub fn run(options: &Options) -> Result<(), CliError> {
    let stores = Stores {
        bytes_max: options.max_bytes.expect("it was checked").0,
        retention: options.retention.0,
        replicas: options.replicas.unwrap_or(1),
    };
    options.cluster.check()?;
    let secret = match &options.secret_file {
        None => None,
        Some(path) => {
            let wrong = |error| format!("--secret-file {}: {error}", path.display());
            Some((path, secret::make(path).map_err(|error| CliError::Usage(wrong(error)))?))
        }
    };
    let (names, sync) = with_link(&options.cluster, async |link| {
        stores.create(link).await.map_err(refused)?;
        Ok((link.names().clone(), cluster_sync(options.cluster.monitor.as_deref()).await))
    })?;
    let [log, leases, directory] = names.streams();
    print_out!(
        "{log}: {} of records at most, for {}, on {}",
        in_units(stores.bytes_max as f64),
        spelled(stores.retention),
        counted(stores.replicas.into(), "server")
    );
    print_out!("{leases}: the leases of nodes\n{directory}: the executions");
    match secret {
        None => {}
        Some((path, Made::New)) => {
            print_out!("{}: a new secret, for every node", path.display());
        }
        Some((path, Made::Found)) => print_out!("{}: the secret is kept", path.display()),
    }
    let Finding { found, means, advice, .. } = sync;
    print_out!("\nsync: {found}\n  {means}\n  {}\n", advice.unwrap_or_default());
    print_out!("The permissions of a node, for its user in the configuration of NATS:\n");
    print_out!("{}", Permissions::of(&names, None));
    Ok(())
}
