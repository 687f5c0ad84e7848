//! The objects of other projects that sources read, kept up to date by list and watch.

use std::fmt;

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use podplane_api::ObjectKey;
use podplane_client::{
    ApiResource, Cache, CacheItem, Client, JsonObject, ObjectsApi, source_reflector,
};

use crate::sources::{
    NodeIpam, SourceError,
    calico::{CalicoBlock, CalicoConfig, CalicoFamilies, CalicoPool, CalicoState},
    cilium::CiliumNode,
};

/// What a source needs of an object.
#[derive(Clone, Debug, PartialEq)]
struct ParsedObject<T> {
    key: ObjectKey,
    uid: String,
    parsed: Result<T, SourceError>,
}

impl<T: Clone + PartialEq + Send + Sync + 'static> CacheItem for ParsedObject<T> {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }
}

impl<T> ParsedObject<T> {
    fn new(
        object: JsonObject,
        parse: impl Fn(&str, &serde_json::Value) -> Result<T, SourceError>,
    ) -> Self {
        let name = object.metadata.name.unwrap_or_default();
        Self {
            parsed: parse(&name, &object.data),
            key: ObjectKey {
                namespace: String::new(),
                name,
            },
            uid: object.metadata.uid.unwrap_or_default(),
        }
    }
}

/// The caches, each made at its first use. They are up to date only while [`ObjectCaches::follow`]
/// is polled.
pub(crate) struct ObjectCaches {
    client: Client,
    node: String,
    cilium: Option<Cache<ParsedObject<CiliumNode>>>,
    calico: Option<CalicoCaches>,
    drivers: FuturesUnordered<BoxFuture<'static, ()>>,
}

#[derive(Clone, Debug)]
struct CalicoCaches {
    blocks: Cache<ParsedObject<Option<CalicoBlock>>>,
    pools: Cache<ParsedObject<Option<CalicoPool>>>,
    configs: Cache<ParsedObject<CalicoConfig>>,
}

impl fmt::Debug for ObjectCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectCaches")
            .field("cilium", &self.cilium)
            .field("calico", &self.calico)
            .finish_non_exhaustive()
    }
}

impl ObjectCaches {
    pub(crate) fn new(client: Client, node: String) -> Self {
        Self {
            client,
            node,
            cilium: None,
            calico: None,
            drivers: FuturesUnordered::new(),
        }
    }

    /// Keeps the caches up to date; never completes.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the work goes on with the next call.
    pub(crate) async fn follow(&mut self) {
        while self.drivers.next().await.is_some() {}
        std::future::pending::<()>().await;
    }

    fn objects(&self, group: &str, version: &str, kind: &str, plural: &str) -> ObjectsApi {
        self.client.metadata().objects(&ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: format!("{group}/{version}"),
            kind: kind.into(),
            plural: plural.into(),
        })
    }

    /// Makes a cache of what `parse` reads of the objects.
    fn cache<T: Clone + PartialEq + Send + Sync + 'static>(
        &self,
        objects: ObjectsApi,
        parse: impl Fn(&str, &serde_json::Value) -> Result<T, SourceError> + Send + 'static,
    ) -> Cache<ParsedObject<T>> {
        let transform = move |object| ParsedObject::new(object, &parse);
        let (cache, driver) = source_reflector(objects, transform);
        self.drivers.push(Box::pin(driver));
        cache
    }

    /// The node's addresses by its `CiliumNode`.
    pub(crate) fn cilium(&mut self, pool: &str) -> Result<NodeIpam, SourceError> {
        let cache = match &self.cilium {
            Some(cache) => cache,
            None => {
                let nodes = self.objects("cilium.io", "v2", "CiliumNode", "ciliumnodes");
                let cache = self.cache(nodes.named(&self.node), CiliumNode::parse);
                self.cilium.insert(cache)
            }
        };
        let key = ObjectKey {
            namespace: String::new(),
            name: self.node.clone(),
        };
        let Some(node) = cache.get(&key) else {
            return Err(not_there("CiliumNode", cache));
        };
        node.parsed.clone()?.addresses(&self.node, pool)
    }

    /// The node's addresses by Calico's objects, and whether a pool's selector was ignored.
    pub(crate) fn calico(
        &mut self,
        families: CalicoFamilies,
    ) -> Result<(NodeIpam, bool), SourceError> {
        let caches = match &self.calico {
            Some(caches) => caches,
            None => {
                let of = |kind, plural| self.objects("crd.projectcalico.org", "v1", kind, plural);
                let node = self.node.clone();
                let parse = move |name: &str, object: &_| CalicoBlock::parse(name, object, &node);
                let caches = CalicoCaches {
                    blocks: self.cache(of("IPAMBlock", "ipamblocks"), parse),
                    pools: self.cache(of("IPPool", "ippools"), CalicoPool::parse),
                    configs: self.cache(
                        of("IPAMConfig", "ipamconfigs").named("default"),
                        CalicoConfig::parse,
                    ),
                };
                self.calico.insert(caches)
            }
        };
        let CalicoCaches {
            blocks,
            pools,
            configs,
        } = caches;
        if !(blocks.is_synced() && pools.is_synced() && configs.is_synced()) {
            let missing = "the objects of Calico have not been read yet".to_owned();
            return Err(SourceError::Missing(missing));
        }
        let config = configs.list().first().map(|config| config.parsed.clone());
        let state = CalicoState {
            blocks: parsed(blocks)?,
            pools: parsed(pools)?,
            config: config.transpose()?.unwrap_or_default(),
        };
        let is_selector_ignored = state.pools.iter().any(|pool| pool.is_selector_ignored);
        Ok((state.addresses(families)?, is_selector_ignored))
    }
}

/// All objects that count.
fn parsed<T: Clone + PartialEq + Send + Sync + 'static>(
    cache: &Cache<ParsedObject<Option<T>>>,
) -> Result<Vec<T>, SourceError> {
    let objects = cache.list();
    let parsed = objects.iter().map(|object| object.parsed.clone());
    parsed.filter_map(Result::transpose).collect()
}

fn not_there<T: CacheItem>(kind: &str, cache: &Cache<T>) -> SourceError {
    SourceError::Missing(match cache.is_synced() {
        true => format!("the node has no {kind} yet"),
        false => format!("the node's {kind} has not been read yet"),
    })
}
