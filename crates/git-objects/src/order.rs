//! The order in which blobs are cheap to read: each after the one it is a delta of.
//!
//! Deltas form trees, and this is their depth-first order. Reading along it, the base of a blob is the blob before it or one of
//! the few that lead there, so that each is inflated once and little is kept. Trees come in the order of their packs.

use crate::oid::Oid;
use crate::pack::PackReader;
use crate::{At, ObjectError, Store};

/// Where a listed blob is.
#[derive(Debug, Clone, Copy)]
struct Node {
    pack: usize,
    offset: u64,
    base: Option<u64>,
    /// Its place among the blobs that were asked for.
    blob: usize,
    size: u64,
}

/// A blob in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ordered {
    /// Its place among the blobs that were asked for.
    pub(crate) blob: usize,
    /// How long it is, as far as that can be told without reading it.
    pub(crate) size: u64,
    /// Whether the repository has it.
    pub(crate) is_present: bool,
}

/// Orders these blobs.
pub(crate) fn by_delta(store: &Store, blobs: &[Oid]) -> Vec<Ordered> {
    let mut reader = PackReader::new();
    let mut nodes: Vec<Node> = Vec::with_capacity(blobs.len());
    let (mut loose, mut missing) = (Vec::new(), Vec::new());
    for (blob, oid) in blobs.iter().enumerate() {
        match store.find(oid) {
            Some(At::Pack(pack, offset)) => nodes.push(Node { pack, offset, base: None, blob, size: 0 }),
            Some(At::Loose(dir)) => {
                let size = store.loose(dir, oid).map_or(0, |loose| loose.size);
                loose.push(Ordered { blob, size, is_present: true });
            }
            None => missing.push(Ordered { blob, size: 0, is_present: false }),
        }
    }
    nodes.sort_unstable_by_key(|node| (node.pack, node.offset));
    for node in &mut nodes {
        // What cannot be read here is not read later either, and is counted then.
        let _ = fill(store, &mut reader, node);
    }
    let mut ordered = depth_first(&nodes);
    loose.sort_unstable_by_key(|one| blobs[one.blob]);
    missing.sort_unstable_by_key(|one| blobs[one.blob]);
    ordered.extend(loose);
    ordered.extend(missing);
    ordered
}

fn fill(store: &Store, reader: &mut PackReader, node: &mut Node) -> Result<(), ObjectError> {
    let entry = store.entry(reader, node.pack, node.offset)?;
    node.base = store.base_of(node.pack, &entry)?;
    node.size = store.size_of(reader, node.pack, &entry)?;
    Ok(())
}

/// `nodes` are in the order of packs and offsets.
fn depth_first(nodes: &[Node]) -> Vec<Ordered> {
    let base_of = |node: &Node| {
        let base = node.base?;
        nodes.binary_search_by_key(&(node.pack, base), |other| (other.pack, other.offset)).ok()
    };
    // Siblings as a list through the nodes: the first child of each, and the next sibling of each.
    let mut first_child: Vec<Option<u32>> = vec![None; nodes.len()];
    let mut next_sibling: Vec<Option<u32>> = vec![None; nodes.len()];
    let mut is_root = vec![true; nodes.len()];
    for (i, node) in nodes.iter().enumerate().rev() {
        if let Some(base) = base_of(node) {
            is_root[i] = false;
            next_sibling[i] = first_child[base].replace(i as u32);
        }
    }
    let mut is_done = vec![false; nodes.len()];
    let mut ordered = Vec::with_capacity(nodes.len());
    let mut open = Vec::new();
    // Bases by name could form a ring, which has no root: whatever is left begins anywhere.
    let roots = (0..nodes.len()).filter(|&i| is_root[i]).chain((0..nodes.len()).filter(|&i| !is_root[i]));
    for root in roots {
        open.push(root);
        while let Some(i) = open.pop() {
            if std::mem::replace(&mut is_done[i], true) {
                continue;
            }
            ordered.push(Ordered { blob: nodes[i].blob, size: nodes[i].size, is_present: true });
            let from = open.len();
            let mut child = first_child[i];
            while let Some(at) = child {
                open.push(at as usize);
                child = next_sibling[at as usize];
            }
            open[from..].reverse();
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(nodes: &[(u64, Option<u64>)]) -> Vec<usize> {
        let nodes: Vec<Node> = nodes
            .iter()
            .enumerate()
            .map(|(blob, &(offset, base))| Node { pack: 0, offset, base, blob, size: 0 })
            .collect();
        depth_first(&nodes).iter().map(|one| one.blob).collect()
    }

    #[test]
    fn a_base_comes_right_before_what_is_made_from_it() {
        //  10 <- 20 <- 50, 10 <- 40, 30 alone
        let nodes = [(10, None), (20, Some(10)), (30, None), (40, Some(10)), (50, Some(20))];
        assert_eq!(order(&nodes), [0, 1, 4, 3, 2]);
    }

    #[test]
    fn bases_that_are_not_listed_and_rings_lose_nothing() {
        assert_eq!(order(&[(10, Some(5)), (20, Some(30)), (30, Some(20))]), [0, 1, 2]);
    }
}
