//! Every area that has figures. An area is a file; to add one, add its line here.

use crate::harness::Figure;

pub(crate) fn figures() -> Vec<Figure> {
    let areas = [
        crate::coordination::figures(),
        crate::detect::figures(),
        crate::dht::figures(),
        crate::etcd::figures(),
        crate::lanes::figures(),
        crate::local::figures(),
        crate::stdx::figures(),
    ];
    areas.into_iter().flatten().collect()
}
