// The rules for the chart. ${NAME} stands for each number that values set and for the two namespaces of the release;
// `numbers` and `namespaces` have the defaults.
local mixin = import '../mixin/mixin.libsonnet';
local config = mixin._config;
local own = ['enabled', 'for', 'keepFiringFor', 'severity'];
local parametrised = mixin {
  _config+:: {
    number:: function(name, value) '${%s}' % name,
    agentNamespace: '${namespaces.agent}',
    webhookNamespace: '${namespaces.webhook}',
  },
};
{
  namespaces: { agent: config.agentNamespace, webhook: config.webhookNamespace },
  numbers:
    { ['slo.' + key]: config.slo[key] for key in std.objectFields(config.slo) }
    + { ['expected.' + key]: if config.expected[key] then 1 else 0 for key in std.objectFields(config.expected) }
    + std.foldl(
      function(numbers, alert) numbers + {
        [alert + '.' + key]: config.alerts[alert][key]
        for key in std.objectFields(config.alerts[alert])
        if !std.member(own, key)
      },
      std.objectFields(config.alerts),
      {}
    ),
  groups: parametrised.prometheusRules.groups + parametrised.prometheusAlerts.groups,
}
