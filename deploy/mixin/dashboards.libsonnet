// Grafana's dashboards, as deploy/dashboards builds them, in the chart.
{
  grafanaDashboards+:: {
    'kaishare-fleet.json': import '../helm/kaishare/files/dashboards/fleet.json',
    'kaishare-namespace.json': import '../helm/kaishare/files/dashboards/namespace.json',
    'kaishare-node.json': import '../helm/kaishare/files/dashboards/node.json',
    'kaishare-webhook.json': import '../helm/kaishare/files/dashboards/webhook.json',
  },
}
