// A pod: its state, its trace, its events, the scheduler's explanation, and its YAML.

/** @import { Condition, Explanation, Pod } from '../types/contract.js' */
/** @import { Trace, WatchEvent } from '../types/contract.js' */
/** @import { Context, View } from './views.js' */

import { ago } from './ages.js';
import { ServerError, isAbort } from './api.js';
import { definitions, h, replace, section } from './dom.js';
import { Events } from './events.js';
import { errorBox, hint } from './messages.js';
import { addressLink, stateOf } from './pods.js';
import { nodeLink } from './route.js';
import { throttled } from './signal.js';
import { DataTable } from './table.js';
import { Waterfall } from './waterfall.js';
import { yamlPanel } from './yaml.js';

/** A watch of a pod is silent while nothing changes; it is opened anew after ten minutes. */
const LONGEST_WATCH = 600_000;

/**
 * @param {Context} context
 * @returns {View}
 */
export function pod(context) {
  const [, namespace = '', name = ''] = context.route.path;
  const [within, called] = [namespace, name].map(encodeURIComponent);
  const path = `/api/v1/namespaces/${within}/pods/${called}`;
  const summary = `/summary/v1alpha1/pods/${within}/${called}`;
  const facts = h('div', {});
  const conditions = conditionTable();
  const events = new Events(context, { kind: 'Pod', namespace, name });
  const trace = new TracePanel(context, `${summary}/trace`);
  const explanation = new ExplanationPanel(context, `${summary}/explanation`);
  const refresh = throttled(context.pause, context.end, async () => {
    await Promise.all([events.read(), trace.read(), explanation.read()]);
  });
  const show = (/** @type {Pod} */ found) => {
    replace(facts, factsOf(found));
    conditions.update(found.status?.conditions ?? []);
    refresh();
  };
  const element = h(
    'div',
    {},
    facts,
    trace.element,
    section('Events', events.element),
    explanation.element,
    section('Conditions', conditions.element),
    yamlPanel(context.api, path, context.end),
  );
  const start = () => follow(context, namespace, name, show, (content) => replace(facts, content));
  return { title: `Pod ${namespace}/${name}`, element, start };
}

/**
 * Shows a pod now and after each change.
 *
 * @param {Context} context
 * @param {string} namespace
 * @param {string} name
 * @param {(pod: Pod) => void} show
 * @param {(content: HTMLElement) => void} instead
 */
function follow({ api, feed, end, isLive, pause }, namespace, name, show, instead) {
  const pods = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`;
  let isShown = false;
  const read = async () => {
    try {
      show(await api.json(`${pods}/${encodeURIComponent(name)}`, end));
    } catch (error) {
      if (!isAbort(error) && !isShown) instead(errorBox(error));
    }
  };
  if (!isLive) {
    feed.cluster.follow(end, throttled(pause, end, read));
    return;
  }
  // The first read says so if the pod does not exist, which a watch does not. Users who may only
  // watch see what the watch has.
  void read();
  const query = new URLSearchParams({ watch: 'true', fieldSelector: `metadata.name=${name}` });
  void api.follow(`${pods}?${query}`, end, {
    onDocument: (/** @type {WatchEvent<Pod>} */ event) => {
      if (event.type === 'ADDED' || event.type === 'MODIFIED') {
        isShown = true;
        show(event.object);
      }
      if (event.type === 'DELETED') instead(hint(`The pod ${namespace}/${name} was deleted.`));
    },
    onLost: () => {},
    silence: LONGEST_WATCH,
    onRefused: (error) => instead(errorBox(error)),
  });
}

/** @param {Pod} pod */
function factsOf(pod) {
  const { metadata, spec, status } = pod;
  const ips = status?.podIPs?.map(({ ip }) => ip) ?? (status?.podIP ? [status.podIP] : []);
  const links = ips.map((ip) => h('span', { class: 'holder' }, addressLink(ip)));
  const node = spec?.nodeName;
  const owners = metadata.ownerReferences?.map(({ kind, name }) => `${kind} ${name}`).join(', ');
  return definitions([
    ['State', stateOf(pod)],
    ['Address', links.length > 0 ? h('span', {}, ...links) : 'none'],
    ['Node', node ? h('a', { href: nodeLink(node) }, node) : 'none'],
    ['Age', ago(metadata.creationTimestamp)],
    ['Owner', owners],
    ['Message', status?.message],
    ['UID', metadata.uid && h('span', { class: 'code' }, metadata.uid)],
  ]);
}

function conditionTable() {
  return new DataTable(
    /** @type {import('./table.js').TableOptions<Condition>} */ ({
      caption: 'Conditions',
      columns: [
        { title: 'Type', value: ({ type }) => type },
        { title: 'Status', value: ({ status }) => status },
        { title: 'Reason', value: ({ reason }) => reason ?? '' },
        { title: 'Message', value: ({ message }) => message ?? '' },
        {
          title: 'Since',
          value: ({ lastTransitionTime }) => lastTransitionTime ?? '',
          show: ({ lastTransitionTime }) => ago(lastTransitionTime),
        },
      ],
      key: ({ type }) => type,
      empty: 'The pod has no conditions yet.',
    }),
  );
}

class TracePanel {
  #waterfall = new Waterfall();
  #content = h('div', {});
  element = section('Trace', this.#content);
  #context;
  #path;

  /**
   * @param {Context} context
   * @param {string} path
   */
  constructor(context, path) {
    this.#context = context;
    this.#path = path;
  }

  async read() {
    const { api, end } = this.#context;
    try {
      /** @type {Trace} */
      const trace = await api.json(this.#path, end);
      this.#waterfall.show(trace);
      if (this.#content.firstChild !== this.#waterfall.element) {
        replace(this.#content, this.#waterfall.element);
      }
    } catch (error) {
      if (isAbort(error)) return;
      const isAbsent = error instanceof ServerError && error.code === 404;
      replace(
        this.#content,
        isAbsent ? h('p', { class: 'quiet' }, error.message) : errorBox(error),
      );
    }
  }
}

class ExplanationPanel {
  element = h('div', {});
  #context;
  #path;
  #decision = h('p', {});
  #table = new DataTable(
    /** @type {import('./table.js').TableOptions<Explanation['nodes'][number]>} */ ({
      caption: 'Nodes as the scheduler sees them for this pod',
      columns: [
        {
          title: 'Node',
          value: ({ name }) => name,
          show: ({ name }) => h('a', { href: nodeLink(name) }, name),
        },
        { title: 'Feasible', value: ({ feasible }) => (feasible ? 'yes' : 'no') },
        { title: 'Reasons', value: ({ reasons }) => reasons.join('; ') },
        {
          title: 'Total',
          value: ({ total }) => total ?? -1,
          show: ({ total }) => String(total ?? '–'),
          isNumeric: true,
        },
        {
          title: 'Scores',
          value: ({ scores }) =>
            Object.entries(scores ?? {})
              .map(([plugin, score]) => `${plugin} ${score}`)
              .join(', '),
        },
      ],
      key: ({ name }) => name,
      empty: 'The scheduler knows no node.',
      sortedBy: 3,
      isDescending: true,
    }),
  );

  /**
   * @param {Context} context
   * @param {string} path
   */
  constructor(context, path) {
    this.#context = context;
    this.#path = path;
  }

  async read() {
    const { api, end, knowsMachine } = this.#context;
    if (!knowsMachine) return;
    try {
      /** @type {Explanation} */
      const found = await api.json(this.#path, end);
      this.#decision.textContent = found.decision;
      this.#table.update(found.nodes);
      if (!this.#table.element.isConnected) {
        replace(this.element, section('Scheduling', this.#decision, this.#table.element));
      }
    } catch (error) {
      const isAbsent = error instanceof ServerError && error.code === 404;
      if (!isAbort(error) && !isAbsent)
        replace(this.element, section('Scheduling', errorBox(error)));
    }
  }
}
