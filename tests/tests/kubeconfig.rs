//! Single pieces in a cluster of others: they reach an API server by kubeconfig, as ServiceAccounts
//! with the rights of `deploy/kubernetes`. Another podplane plays the other cluster: it has API
//! server and kubelets, gives no blocks, counts no addresses, and leaves pods with `schedulerName:
//! podplane` alone.

mod bases;
mod blocks;
mod cluster_cidrs;
mod other;
mod permissions;
mod release;
mod schedulers;
mod story_a;
