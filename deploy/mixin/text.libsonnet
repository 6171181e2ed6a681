// Texts of expressions and annotations, with ${name} for each setting of _config.
{
  // Replaces each ${name} by its text, and fails if one is left.
  fill(text, texts)::
    local filled = std.foldl(
      function(filled, name) std.strReplace(filled, '${' + name + '}', texts[name]),
      std.objectFields(texts),
      text
    );
    // Placeholders of the chart contain a dot, and are no setting.
    local left = [part for part in std.split(filled, '${')[1:] if std.length(std.findSubstr('.', std.split(part, '}')[0])) == 0];
    if left == [] then std.rstripChars(filled, '\n') else error 'no setting ${%s' % left[0],

  // Texts that all expressions share.
  shared(config):: {
    agent: config.agentSelector,
    webhook: config.webhookSelector,
    cluster: config.clusterLabel,
    // The memory that KAI counts: whole hundreds of MiB (kai/share_bytes.py).
    countedTotal: 'floor(kaishare_gpu_memory_total_bytes{%s} / 104857600) * 104857600 > 0' % config.agentSelector,
    agentNamespace: config.agentNamespace,
    agentDaemonSet: config.agentDaemonSet,
    webhookNamespace: config.webhookNamespace,
    webhookDeployment: config.webhookDeployment,
    fastSeconds: config.number('slo.fastSeconds', config.slo.fastSeconds),
    failureBudget: '(1 - %s / 100)' % config.number('slo.answeredPercent', config.slo.answeredPercent),
    latencyBudget: '(1 - %s / 100)' % config.number('slo.fastPercent', config.slo.fastPercent),
  },
}
