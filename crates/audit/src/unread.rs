//! Objects of networks that could not be read: without them some rules find nothing, which must not
//! look like a cluster without faults.

use std::fmt;

use serde::Serialize;

use crate::finding::Code;

/// Objects that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnreadResource {
    /// Their resource, such as `ipamblocks.crd.projectcalico.org`.
    pub resource: String,
    /// The failure, such as `403 Forbidden`.
    pub reason: String,
}

impl fmt::Display for UnreadResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {} ({})", self.resource, self.reason)
    }
}

impl UnreadResource {
    /// True if the rule needs these objects.
    pub(crate) fn concerns(&self, code: Code) -> bool {
        use Code::{
            BlockOutsidePool, DuplicateAllocation, DuplicatePodCidr, ForeignPodCidr,
            LeakedAllocation, MissingAllocation, MissingPodCidr, OrphanedBlock, OverlappingPodCidr,
            PodCidrMismatch, PodOutsideBlock, ServiceRangeOverlap,
        };
        let is_whereabouts = self.resource.ends_with(".whereabouts.cni.cncf.io");
        let name = self.resource.split('.').next().unwrap_or_default();
        match name {
            "cninodes" => code == OrphanedBlock,
            "ciliumendpoints" | "overlappingrangeipreservations" => {
                matches!(code, DuplicateAllocation | LeakedAllocation)
            }
            "ippools" if is_whereabouts => matches!(
                code,
                DuplicateAllocation | MissingAllocation | LeakedAllocation
            ),
            "ippools" | "ciliumpodippools" => matches!(code, OverlappingPodCidr | BlockOutsidePool),
            _ => matches!(
                code,
                DuplicatePodCidr
                    | OverlappingPodCidr
                    | ForeignPodCidr
                    | MissingPodCidr
                    | PodCidrMismatch
                    | ServiceRangeOverlap
                    | PodOutsideBlock
                    | DuplicateAllocation
                    | MissingAllocation
                    | LeakedAllocation
                    | OrphanedBlock
                    | BlockOutsidePool
            ),
        }
    }
}
