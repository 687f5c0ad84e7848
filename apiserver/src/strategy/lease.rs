use podplane_api::coordination::Lease;

use super::Strategy;

impl Strategy for Lease {
    const SERVICE: &'static str = "podplane.core.v1.LeaseService";
    // Two candidates that both renew without looking would both lead.
    const UNCONDITIONAL_UPDATE: bool = false;
    const CREATE_ON_UPDATE: bool = true;
}
