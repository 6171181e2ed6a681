// The rules of the mixin with its defaults.
local mixin = import '../mixin/mixin.libsonnet';
{ groups: mixin.prometheusRules.groups + mixin.prometheusAlerts.groups }
