// Panels in one style, each with a description; links, variables and marks; and the dashboard around them.
//
// The form is that of Grafana 11.6 (schema version 41). What Grafana adds by itself is left out.
local q = import 'queries.libsonnet';
local datasource = { type: 'prometheus', uid: '${datasource}' };
local letters = std.stringChars('ABCDEFGHIJKLMNOPQRSTUVWXYZ');
// Columns that Grafana adds to a table for the time and for the labels.
local labelColumns = [
  'Time', 'cluster', 'namespace', 'pod', 'uid', 'vcluster', 'virtual_namespace', 'virtual_pod', 'queue',
  'node', 'gpu', 'gpu_uuid', 'model', 'reason', 'instance', 'job',
];
local selected(text, value) = { selected: true, text: text, value: value };
{
  local p = self,

  bytes: 'bytes',
  ratio: 'percentunit',
  seconds: 's',
  perSecond: 'reqps',
  count: 'short',

  // Colours of values: the first one, and further ones from a value on.
  limits(first, steps=[]): {
    mode: 'absolute',
    steps: [{ value: null, color: first }] + [{ value: step[0], color: step[1] } for step in steps],
  },
  neutral: p.limits('text'),
  redFrom(value): p.limits('green', [[value, 'red']]),
  redBelow(value): p.limits('red', [[value, 'green']]),
  orangeFrom(value): p.limits('green', [[value, 'orange']]),
  orangeBelow(value): p.limits('orange', [[value, 'green']]),
  local hasSteps(limits) = std.length(limits.steps) > 1,

  // The size; `flow` sets the place.
  local panel(type, title, description, width, height, targets) = {
    type: type,
    title: title,
    description: description,
    datasource: datasource,
    gridPos: { w: width, h: height },
    targets: [
      { refId: letters[index], datasource: datasource } + targets[index]
      for index in std.range(0, std.length(targets) - 1)
    ],
  },
  local instant(expr, legend) = { expr: expr, instant: true, range: false, legendFormat: legend },

  // The current value, one for each cluster. Without a series it is unknown, and not 0.
  number(title, description, expr, unit=p.count, limits=p.neutral, noValue='unknown', width=4):
    panel('stat', title, description, width, 4, [instant(expr, '{{cluster}}')]) {
      options: { graphMode: 'none', colorMode: 'value', reduceOptions: { calcs: ['lastNotNull'] } },
      fieldConfig: {
        defaults: { unit: unit, thresholds: limits, noValue: noValue, [if unit == p.seconds then 'decimals']: 0 },
        overrides: [],
      },
    },

  // Repeats a number for each selected value of a variable, and names its values.
  forEach(variable, legend, number): number {
    repeat: variable,
    repeatDirection: 'h',
    maxPerRow: 6,
    targets: [target { legendFormat: legend } for target in super.targets],
  },

  // Queries of lines and bars are pairs of the legend and the expression. This one aggregates by labels, which are the legend.
  by(aggregation, labels, expr): [
    std.join(' ', ['{{%s}}' % label for label in std.split(labels, ', ')]),
    '%s by (%s) (%s)' % [aggregation, labels, expr],
  ],

  // Lines over time; a gap is an unknown value.
  lines(title, description, queries, unit=p.count, limits=p.neutral, stacked=false, width=12):
    panel('timeseries', title, description, width, 8, [
      { expr: query[1], instant: false, range: true, legendFormat: query[0] }
      for query in queries
    ]) {
      options: {
        legend: { displayMode: 'list', placement: 'bottom', showLegend: true, calcs: [] },
        tooltip: { mode: 'multi', sort: 'desc' },
      },
      fieldConfig: {
        defaults: {
          unit: unit,
          min: 0,
          color: { mode: 'palette-classic' },
          [if hasSteps(limits) then 'thresholds']: limits,
          custom: {
            fillOpacity: if stacked then 20 else 5,
            showPoints: 'never',
            spanNulls: false,
            [if stacked then 'stacking']: { mode: 'normal', group: 'A' },
            [if hasSteps(limits) then 'thresholdsStyle']: { mode: 'line' },
          },
        },
        overrides: [],
      },
    },

  bars(title, description, queries, unit=p.count, limits=p.neutral, width=12, height=8):
    panel('bargauge', title, description, width, height, [instant(query[1], query[0]) for query in queries]) {
      options: { displayMode: 'basic', orientation: 'horizontal', reduceOptions: { calcs: ['lastNotNull'] } },
      fieldConfig: { defaults: { unit: unit, min: 0, thresholds: limits, noValue: 'unknown' }, overrides: [] },
    },

  column(title, expr, unit=p.count, limits=p.neutral): { title: title, expr: expr, unit: unit, limits: limits },

  // Columns with the rows of which the first column, or `rank` where its cells may be empty, is largest in each cluster; `on`
  // identifies a row. Prometheus selects the rows: a fleet with ten thousand pods would overload the browser.
  largest(count, columns, on=q.podOnGpu, rank=''):
    local top = 'topk by (cluster) (%s, %s)' % [count, if rank == '' then columns[0].expr else rank];
    local limited = [column { expr: '(%s) and on (%s) %s' % [super.expr, on, top] } for column in columns];
    if rank == '' then [columns[0] { expr: top }] + limited[1:] else limited,

  // A table: a row for each combination of `labels`, such as 'cluster, node', in their order; a column for each query. All
  // queries must return the same labels, because Grafana merges rows by them. The largest values of the column `sortBy` come
  // first, or the smallest ones.
  rows(title, description, labels, columns, sortBy='', smallestFirst=false, links=[], noValue='none, or unknown', width=24, height=8):
    local shown = std.split(labels, ', ');
    local several = std.length(columns) > 1;
    local names = [if several then 'Value #' + letters[index] else 'Value' for index in std.range(0, std.length(columns) - 1)];
    local ordered = shown + names;
    local override(name, properties) = {
      matcher: { id: 'byName', options: name },
      properties: [{ id: property[0], value: property[1] } for property in properties],
    };
    panel('table', title, description, width, height, [
      { expr: column.expr, instant: true, range: false, format: 'table' }
      for column in columns
    ]) {
      transformations: (if several then [{ id: 'merge', options: {} }] else []) + [
        { id: 'organize', options: {
          excludeByName: { [label]: true for label in labelColumns if !std.member(shown, label) },
          indexByName: { [ordered[index]]: index for index in std.range(0, std.length(ordered) - 1) },
          renameByName: { [names[index]]: columns[index].title for index in std.range(0, std.length(names) - 1) },
        } },
      ] + (if sortBy == '' then [] else [
             { id: 'sortBy', options: { fields: {}, sort: [{ field: sortBy, desc: !smallestFirst }] } },
           ]),
      fieldConfig: {
        defaults: { noValue: noValue, custom: { filterable: true } },
        overrides: [
          override(
            column.title,
            [['unit', column.unit]]
            + (if column.unit == p.seconds then [['decimals', 0]] else [])
            + (if hasSteps(column.limits) then [['thresholds', column.limits], ['custom.cellOptions', { type: 'color-text' }]] else [])
          )
          for column in columns
        ] + [
          override(link.column, [['links', [{ title: link.title, url: link.url, targetBlank: link.newTab }]]])
          for link in links
        ],
      },
    },

  // Links on the cells of a column. A link to a dashboard keeps the time range, the data source, `$cluster` and the variables
  // in `kept`, which both dashboards have. The value of `$cluster` is the current selection and not the row's own label: series
  // of a Prometheus for one cluster lack the label, and Grafana leaves the text of a missing field in the address.
  local link(column, title, url, newTab=false) = { column: column, title: title, url: url, newTab: newTab },
  local toDashboard(name, title, kept) = link(
    name, title + ' ${__value.raw}',
    '/d/kaishare-%s?${__url_time_range}&%s&var-%s=${__value.raw}' % [
      name, std.join('&', ['${%s:queryparam}' % variable for variable in ['datasource', 'cluster'] + kept]), name,
    ]
  ),
  toNode(kept): toDashboard('node', 'Node', kept),
  toNamespace(kept=['agent_job']): toDashboard('namespace', 'Namespace', kept),
  // An agent's `instance` is its address.
  toAgentPage: link('instance', 'Page of the agent at ${__value.raw}', '${agent_scheme}://${__value.raw}/', true),
  toRunbook: link('runbook', 'Runbook of ${__data.fields.alertname}', '${__value.raw}#${__data.fields.alertname}', true),
  // Adds the label `runbook`, the address of docs/runbooks.md, to alerts, unless `$runbooks` is empty. A dead link is worse than
  // none: with an empty `$runbooks`, (.+) does not match and the label is not set.
  withRunbook(alerts):
    local based = 'label_replace(%s, "base", "$runbooks", "alertname", ".*")' % alerts;
    'sum without (base) (label_replace(%s, "runbook", "${1}docs/runbooks.md", "base", "(.+)"))' % based,

  local query(name, label, description, query) = {
    type: 'query',
    name: name,
    label: label,
    description: description,
    datasource: datasource,
    query: { query: query, refId: 'variable-' + name },
    refresh: 2,  // when the time range changes
    sort: 1,  // alphabetical
    multi: true,
    includeAll: false,
  },
  // Several values. All is `.*`, which also selects series without the label.
  several(name, label, description, values): query(name, label, description, values) {
    includeAll: true,
    allValue: '.*',
    current: selected(['All'], ['$__all']),
  },
  // Several values without All, for figures that would overload the browser at All.
  some(name, label, description, values): query(name, label, description, values),
  // One value, for matchers with `=`; at first the first value.
  single(name, label, description, values): query(name, label, description, values) { multi: false },
  // Fixed options: pairs of text and value.
  choice(name, label, description, options, default=0): {
    type: 'custom',
    name: name,
    label: label,
    description: description,
    query: std.join(', ', ['%s : %s' % option for option in options]),
    options: [selected(option[0], option[1]) { selected: option == options[default] } for option in options],
    current: selected(options[default][0], options[default][1]),
    multi: false,
    includeAll: false,
    allowCustomValue: false,
  },
  // A hidden variable, which the address ?var-NAME= or the dashboard's settings change.
  hidden(name, description, value): {
    type: 'textbox',
    name: name,
    description: description,
    hide: 2,
    query: value,
    current: selected(value, value),
  },
  datasource: {
    type: 'datasource',
    name: 'datasource',
    label: 'Data source',
    description: "Prometheus with kaishare's metrics and recorded figures.",
    query: 'prometheus',
    current: selected('default', 'default'),
    multi: false,
    includeAll: false,
  },
  cluster: p.several(
    'cluster', 'Cluster', 'Label `cluster` of the series. Keep All where one Prometheus serves one cluster without the label.',
    'label_values(kaishare_build_info, cluster)'
  ),
  vcluster(where=q.cluster): p.several(
    'vcluster', 'vCluster', 'Pods of these vClusters. All also contains pods of the host, which have no vCluster.',
    'label_values(kaishare_pod_info{%s}, vcluster)' % where
  ),
  // A regular expression for the label vcluster.
  origin: p.choice(
    'origin', 'Pods of', 'Pods of the host have no vCluster.',
    [['host and vClusters', '.*'], ['host', '^$'], ['vClusters', '.+']]
  ),
  agentScheme: p.choice(
    'agent_scheme', 'Agent page', "Scheme of links to an agent's page; https with agent.tlsSecret. The address is the label `instance`.",
    [['http', 'http'], ['https', 'https']]
  ),
  local job(variable, pods, namespace, name) = p.hidden(
    variable,
    'Regular expression for the job of the %s. The Prometheus operator names it NAMESPACE/%s, by the namespace of its PodMonitor.' % [pods, name],
    '(%s/)?%s' % [namespace, name]
  ),
  agentJob: job('agent_job', 'agents', 'kaishare-agent', 'kaishare-agent'),
  webhookJob: job('webhook_job', 'webhook', 'kaishare', 'kaishare-webhook'),
  kaiScheduler: p.hidden('kai_scheduler', 'Regular expression for the schedulerName of pods that KAI places.', 'kai-scheduler'),
  runbooks: p.hidden('runbooks', 'Address of the folder that has docs/runbooks.md, with a slash at its end. Empty: no links to runbooks.', ''),

  // Events as marks in all panels over time. A mark ends 5 minutes after its event.
  local mark(name, color, expr) = { name: name, iconColor: color, expr: expr, datasource: datasource, enable: true },
  // `agents` selects agents by a set operation.
  flagsRaised(agents=''): mark(
    'Flags raised', 'red',
    'sum by (cluster, reason) (increase(kaishare_agent_flag_transitions_total{cluster=~"$cluster", change="raised"}[5m])%s) > 0' % agents
  ),
  evictions: mark(
    'Evictions', 'orange',
    'sum by (cluster) (%s) > 0' % q.beganOrGrew('kaishare_agent_evictions_total', q.cluster + ', result="evicted"', '5m', '300')
  ),
  // A version of the agent or webhook first runs in a cluster that ran another before. A pause of Prometheus gives no mark,
  // because then nothing ran before.
  versions(component):
    local series = 'kaishare_build_info{cluster=~"$cluster", component="%s"}' % component;
    local by = 'group by (cluster, component, version)';
    mark(
      'New version of the ' + component, 'blue',
      '(%s (%s) unless %s (%s offset 5m)) and on (cluster) (%s offset 5m)' % [by, series, by, series, series]
    ),

  // A collapsed row; Grafana runs its queries once it is opened.
  section(title, panels): { title: title, panels: panels },

  // Places panels from left to right and from top to bottom, and numbers them; returns also the row below them.
  local flow(panels, top, firstId) = std.foldl(
    function(state, panel)
      local width = panel.gridPos.w;
      local fits = state.x + width <= 24;
      local x = if fits then state.x else 0;
      local y = if fits then state.y else state.y + state.height;
      {
        x: x + width,
        y: y,
        height: std.max(if fits then state.height else 0, panel.gridPos.h),
        panels: state.panels + [panel { id: firstId + std.length(state.panels), gridPos+: { x: x, y: y } }],
      },
    panels,
    { x: 0, y: top, height: 0, panels: [] }
  ),

  // An overview on top, and collapsed rows of details below.
  dashboard(name, title, description, variables, annotations, overview, sections):
    local first = flow(overview, 0, 1);
    local rowed = std.foldl(
      function(state, section)
        local details = flow(section.panels, state.y + 1, state.id + 1).panels;
        {
          y: state.y + 1,
          id: state.id + 1 + std.length(details),
          panels: state.panels + [{
            type: 'row',
            id: state.id,
            title: section.title,
            collapsed: true,
            gridPos: { x: 0, y: state.y, w: 24, h: 1 },
            panels: details,
          }],
        },
      sections,
      { y: first.y + first.height, id: std.length(overview) + 1, panels: first.panels }
    );
    {
      uid: 'kaishare-' + name,
      title: 'kaishare / ' + title,
      description: description,
      tags: ['kaishare', 'gpu', 'kai'],
      schemaVersion: 41,
      version: 1,
      editable: true,
      graphTooltip: 1,  // a cursor that all panels share
      refresh: '1m',
      time: { from: 'now-6h', to: 'now' },
      timezone: 'browser',
      templating: { list: variables },
      annotations: { list: annotations },
      // The menu of all dashboards, which keeps variables and time.
      links: [{
        title: 'kaishare', type: 'dashboards', tags: ['kaishare'], icon: 'external link', tooltip: 'Dashboards of kaishare',
        asDropdown: true, includeVars: true, keepTime: true, targetBlank: false,
      }],
      panels: rowed.panels,
    },
}
