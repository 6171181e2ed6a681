// Grafana's dashboards, as deploy/dashboards builds them.
{
  grafanaDashboards+:: {
    'kaishare-fleet.json': import '../dashboards/fleet.json',
    'kaishare-namespace.json': import '../dashboards/namespace.json',
    'kaishare-node.json': import '../dashboards/node.json',
    'kaishare-webhook.json': import '../dashboards/webhook.json',
  },
}
