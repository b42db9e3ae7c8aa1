//! Between the store's types and etcd's messages. Nothing is copied: keys and values are shared buffers.

use bytes::Bytes;

use super::messages as pb;
use crate::kv::{
    Compare, CompareOp, CompareTarget, Consistency, EtcdLeaseId, Fate, KeyValue, Keys, KvError, KvErrorKind, Op,
    OpResponse, RangeRequest, RangeResponse, Revision, Txn, TxnResponse,
};

pub(super) fn range_request(request: RangeRequest) -> pb::RangeRequest {
    let (key, range_end) = keys(request.keys);
    pb::RangeRequest {
        key,
        range_end,
        limit: i64::from(request.limit),
        revision: request.revision.0,
        serializable: request.consistency == Consistency::Serializable,
        keys_only: request.keys_only,
        count_only: request.count_only,
    }
}

pub(super) fn txn_request(txn: Txn) -> pb::TxnRequest {
    pb::TxnRequest {
        compare: txn.compares.into_iter().map(compare).collect(),
        success: txn.success.into_iter().map(op).collect(),
        failure: txn.failure.into_iter().map(op).collect(),
    }
}

pub(super) fn range_response(response: pb::RangeResponse) -> RangeResponse {
    RangeResponse {
        revision: revision(response.header.as_ref()),
        kvs: response.kvs.into_iter().map(key_value).collect(),
        more: response.more,
        count: response.count,
    }
}

/// A transaction's answer. The server is held to the protocol: an operation without an answer is an error, since
/// the caller will index into the list.
pub(super) fn txn_response(response: pb::TxnResponse) -> Result<TxnResponse, KvError> {
    let revision = revision(response.header.as_ref());
    let responses = response
        .responses
        .into_iter()
        .map(|op| match op.response {
            Some(pb::Response::Range(range)) => Ok(OpResponse::Range(range_response(range))),
            Some(pb::Response::Put(_)) => Ok(OpResponse::Put),
            Some(pb::Response::DeleteRange(delete)) => Ok(OpResponse::Delete { deleted: delete.deleted }),
            Some(pb::Response::Txn(nested)) => {
                // Some servers fill the nested header, some do not; ours is always the outer one.
                let nested = TxnResponse { revision: Revision(0), ..txn_response(nested)? };
                Ok(OpResponse::Txn(nested))
            }
            None => Err(KvError::new(
                Fate::Ambiguous,
                KvErrorKind::UnexpectedResponse,
                "a transaction's answer holds an operation of an unknown kind",
            )),
        })
        .collect::<Result<_, _>>()?;
    Ok(TxnResponse { revision, succeeded: response.succeeded, responses })
}

fn compare(compare: Compare) -> pb::Compare {
    let (key, range_end) = keys(compare.keys);
    let (target, union) = match compare.target {
        CompareTarget::Version(version) => (pb::compare_target::VERSION, pb::TargetUnion::Version(version)),
        CompareTarget::CreateRevision(at) => (pb::compare_target::CREATE, pb::TargetUnion::CreateRevision(at.0)),
        CompareTarget::ModRevision(at) => (pb::compare_target::MOD, pb::TargetUnion::ModRevision(at.0)),
        CompareTarget::Value(value) => (pb::compare_target::VALUE, pb::TargetUnion::Value(value)),
        CompareTarget::Lease(lease) => (pb::compare_target::LEASE, pb::TargetUnion::Lease(lease.0)),
    };
    let result = match compare.op {
        CompareOp::Equal => pb::compare_result::EQUAL,
        CompareOp::NotEqual => pb::compare_result::NOT_EQUAL,
        CompareOp::Greater => pb::compare_result::GREATER,
        CompareOp::Less => pb::compare_result::LESS,
    };
    pb::Compare { result, target, key, target_union: Some(union), range_end }
}

fn op(op: Op) -> pb::RequestOp {
    let request = match op {
        Op::Range(range) => pb::Request::Range(range_request(range)),
        Op::Put { key, value, lease } => pb::Request::Put(pb::PutRequest { key, value, lease: lease.0 }),
        Op::Delete(deleted) => {
            let (key, range_end) = keys(deleted);
            pb::Request::DeleteRange(pb::DeleteRangeRequest { key, range_end })
        }
        Op::Txn(txn) => pb::Request::Txn(txn_request(txn)),
    };
    pb::RequestOp { request: Some(request) }
}

fn keys(keys: Keys) -> (Bytes, Bytes) {
    match keys {
        Keys::One(key) => (key, Bytes::new()),
        Keys::Range { start, end } => (start, end),
    }
}

fn key_value(kv: pb::KeyValue) -> KeyValue {
    KeyValue {
        key: kv.key,
        value: kv.value,
        create_revision: Revision(kv.create_revision),
        mod_revision: Revision(kv.mod_revision),
        version: kv.version,
        lease: EtcdLeaseId(kv.lease),
    }
}

fn revision(header: Option<&pb::ResponseHeader>) -> Revision {
    Revision(header.map_or(0, |header| header.revision))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_unknown_kind_is_an_error_and_not_a_gap() {
        let response =
            pb::TxnResponse { header: None, succeeded: true, responses: vec![pb::ResponseOp { response: None }] };
        let error = txn_response(response).expect_err("an empty answer cannot be understood");
        assert_eq!(error.kind, KvErrorKind::UnexpectedResponse);
        assert_eq!(error.fate, Fate::Ambiguous);
    }
}
