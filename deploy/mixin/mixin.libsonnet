(import 'config.libsonnet')
+ (import 'alerts.libsonnet')
+ (import 'rules.libsonnet')
+ (import 'dashboards.libsonnet')
