//! The fabric `verbs`: READs by an RDMA device.

pub mod gid;
