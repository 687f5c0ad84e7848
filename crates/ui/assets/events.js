// The events of an object.

/** @import { ClusterEvent } from '../types/contract.js' */
/** @import { Context } from './views.js' */

import { ago } from './ages.js';
import { isAbort } from './api.js';
import { h, replace } from './dom.js';
import { errorBox } from './messages.js';
import { DataTable } from './table.js';

/** @param {ClusterEvent} event */
function timeOf({ series, lastTimestamp, eventTime, firstTimestamp, metadata }) {
  const times = [series?.lastObservedTime, lastTimestamp, eventTime, firstTimestamp];
  return times.find((time) => !!time) ?? metadata.creationTimestamp ?? '';
}

/** The events of an object. */
export class Events {
  element;
  #context;
  #path;
  #problem = h('div', {});
  #table = new DataTable(
    /** @type {import('./table.js').TableOptions<ClusterEvent>} */ ({
      caption: 'Events',
      columns: [
        { title: 'Last seen', value: timeOf, show: (event) => ago(timeOf(event)) },
        { title: 'Type', value: ({ type }) => type ?? '' },
        { title: 'Reason', value: ({ reason }) => reason ?? '' },
        { title: 'Message', value: ({ message }) => message ?? '' },
        {
          title: 'From',
          value: ({ source, reportingComponent }) => source?.component ?? reportingComponent ?? '',
        },
        {
          title: 'Count',
          value: ({ series, count }) => series?.count ?? count ?? 1,
          isNumeric: true,
        },
      ],
      key: ({ metadata }) => metadata.name,
      empty: 'No events.',
      sortedBy: 0,
      isDescending: true,
    }),
  );
  #isOf;

  /**
   * @param {Context} context
   * @param {{kind: string, namespace: string, name: string}} object without a namespace the events
   *   are in `default`
   */
  constructor(context, { kind, namespace, name }) {
    this.#context = context;
    const within = encodeURIComponent(namespace || 'default');
    const fieldSelector = `involvedObject.kind=${kind},involvedObject.name=${name}`;
    this.#path = context.isLive
      ? `/api/v1/namespaces/${within}/events?${new URLSearchParams({ fieldSelector })}`
      : '/api/v1/events';
    this.#isOf = (/** @type {ClusterEvent} */ { involvedObject: of }) =>
      of.name === name && (of.namespace ?? '') === namespace && (of.kind ?? 'Pod') === kind;
    this.element = h('div', {}, this.#problem, this.#table.element);
  }

  /** @param {string} [uid] the object's, to leave out the events of earlier ones of its name */
  async read(uid) {
    const { api, end } = this.#context;
    try {
      /** @type {{items: ClusterEvent[]}} */
      const { items } = await api.json(this.#path, end);
      replace(this.#problem);
      const isSame = (/** @type {ClusterEvent} */ { involvedObject: of }) =>
        !uid || !of.uid || of.uid === uid;
      this.#table.update(items.filter((event) => this.#isOf(event) && isSame(event)));
    } catch (error) {
      if (!isAbort(error)) replace(this.#problem, errorBox(error));
    }
  }
}
