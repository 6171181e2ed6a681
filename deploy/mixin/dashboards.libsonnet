// Grafana's dashboards. The chart has the same ones, rendered by `make chart`.
{
  grafanaDashboards+:: {
    'kaishare-fleet.json': import 'dashboards/fleet.libsonnet',
    'kaishare-namespace.json': import 'dashboards/namespace.libsonnet',
    'kaishare-node.json': import 'dashboards/node.libsonnet',
    'kaishare-webhook.json': import 'dashboards/webhook.libsonnet',
  },
}
