// The state of the cluster, as far as the page holds it: never all pods.

/** @import { Check, ClusterDocument, Finding, Network } from '../types/contract.js' */
/** @import { NodeRow, PodTotals, WaitingGroup } from '../types/contract.js' */
/** @import { Api, ServerError } from './api.js' */

import { isAbort } from './api.js';
import { Signal } from './signal.js';

/**
 * @typedef {object} Cluster
 * @property {boolean} isKnown
 * @property {string} revision
 * @property {string | null} at the moment of a recording
 * @property {Network[]} networks
 * @property {Map<string, NodeRow>} nodes by name
 * @property {PodTotals} pods
 * @property {WaitingGroup[]} waiting
 * @property {boolean} isAudited true once there are findings and checks
 * @property {Finding[]} findings
 * @property {number} findingsTotal
 * @property {Check[]} checks
 */

/**
 * @typedef {object} Connection
 * @property {'connecting' | 'live' | 'lost' | 'refused' | 'recording'} state
 * @property {string} error
 */

/** @returns {Cluster} */
function unknown() {
  return {
    isKnown: false,
    revision: '',
    at: null,
    networks: [],
    nodes: new Map(),
    pods: { total: 0, running: 0, waiting: 0 },
    waiting: [],
    isAudited: false,
    findings: [],
    findingsTotal: 0,
    checks: [],
  };
}

export class ClusterFeed {
  cluster = new Signal(unknown());
  connection = new Signal(/** @type {Connection} */ ({ state: 'connecting', error: '' }));
  #api;

  /** @param {Api} api */
  constructor(api) {
    this.#api = api;
  }

  /**
   * Follows the live cluster until `end`.
   *
   * @param {AbortSignal} end
   */
  follow(end) {
    this.#reset();
    void this.#api.follow('/summary/v1alpha1/cluster?watch=true', end, {
      onDocument: (/** @type {ClusterDocument} */ document) => {
        this.#apply(document, null);
        this.#is('live');
      },
      onLost: (error) => this.#is('lost', error),
      onRefused: (/** @type {ServerError} */ error) => this.#is('refused', error),
    });
  }

  /**
   * Reads the cluster once, at the moment of a recording.
   *
   * @param {AbortSignal} signal
   */
  async read(signal) {
    try {
      const { at } = this.#api;
      this.#apply(await this.#api.json('/summary/v1alpha1/cluster', signal, at), at);
      this.#is('recording');
    } catch (error) {
      if (!isAbort(error)) this.#is('refused', error);
    }
  }

  #reset() {
    this.cluster.set(unknown());
    this.#is('connecting');
  }

  /**
   * @param {Connection['state']} state
   * @param {unknown} [error]
   */
  #is(state, error) {
    const text = error instanceof Error ? error.message : '';
    const { value } = this.connection;
    if (value.state !== state || value.error !== text) this.connection.set({ state, error: text });
  }

  /**
   * @param {ClusterDocument} document
   * @param {string | null} at
   */
  #apply(document, at) {
    if (document.type === 'BOOKMARK') return;
    const before = document.type === 'CLUSTER' ? unknown() : this.cluster.value;
    const nodes = before.nodes;
    for (const name of document.goneNodes ?? []) nodes.delete(name);
    for (const node of document.nodes ?? []) nodes.set(node.name, node);
    this.cluster.set({
      isKnown: true,
      revision: document.revision ?? before.revision,
      at,
      networks: document.networks ?? before.networks,
      nodes,
      pods: document.pods ?? before.pods,
      waiting: document.waiting ?? before.waiting,
      isAudited: before.isAudited || document.checks !== undefined,
      findings: document.findings ?? before.findings,
      findingsTotal: document.findingsTotal ?? document.findings?.length ?? before.findingsTotal,
      checks: document.checks ?? before.checks,
    });
  }
}
