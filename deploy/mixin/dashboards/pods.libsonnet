// Tables of pods that several dashboards have.
local p = import 'panels.libsonnet';
local q = import 'queries.libsonnet';
{
  // The figures of each selected pod on each GPU. The time over the share reads the whole selected time range; pods that ended
  // within it are left out.
  columns(where, hasTimeOver=true): [
    p.column('use of share', '%s / %s' % [q.used(where), q.share(where)], p.ratio, p.redFrom(1.05)),
    p.column('used', q.used(where), p.bytes),
    p.column('share', q.share(where), p.bytes),
    p.column('limit', q.pod('kaishare_pod_gpu_memory_limit_bytes', where), p.bytes),
    p.column('utilisation', q.utilization(where), p.ratio),
  ] + (if hasTimeOver then [
         p.column('time over share', '%s and on (%s) kaishare_pod_gpu_memory_share_bytes{%s}' % [q.timeOverShare(where), q.podOnGpu, where], p.seconds),
       ] else []) + [
    p.column('flagged', q.pod('kaishare_pod_flagged', where), limits=p.redFrom(1)),
  ],

  // The pods on GPUs at risk.
  atRisk(where, labels, links=[], width=24):
    local above = q.onGpusAtRisk(q.aboveShare(where), where);
    local left = q.onGpusAtRisk(q.leftOfShare(where), where);
    p.rows('Pods on GPUs at risk', 'Who holds more than promised, and who was promised memory that is not there? above share in red: ask the owner of this pod first. promised and not used: an allocation of up to this much may fail, although the pod is within its share. All pods of these GPUs are listed, whichever are selected.',
      labels, p.largest(50, [
        p.column('used', q.used(where), p.bytes),
        p.column('share', q.share(where), p.bytes),
        p.column('above share', above, p.bytes, limits=p.redFrom(1)),
        p.column('promised and not used', left, p.bytes),
      ], rank='(%s or %s)' % [above, left]),
      sortBy='above share', links=[p.toNamespace()] + links, noValue='no GPU is at risk, or unknown', width=width),

  // The pods that restarted or failed beside an offender.
  neighbours(where, labels, links=[], width=24):
    local hit = 'topk by (cluster) (50, %s)' % q.hitNeighbours(where);
    local ofHit(figure) = '0 * %s + on (cluster, uid) group_left () (%s)' % [hit, figure];
    p.rows('Neighbours that restarted or failed in the last hour', 'Who may have been hit? Pods within their shares on a GPU that was at risk in the last hour, or where another pod was flagged. Orange: restarts. ended with Error is the reason of a process that got no GPU memory, and of any other error; ended with OOMKilled is about the memory of the node. failed: the pod does not restart. A restart may have another cause. Needs kube-state-metrics.',
      labels, [
        p.column('restarts', hit, limits=p.orangeFrom(1)),
        p.column('ended with Error', ofHit(q.lastEnded('Error'))),
        p.column('ended with OOMKilled', ofHit(q.lastEnded('OOMKilled'))),
        p.column('failed', ofHit(q.failed())),
      ], sortBy='restarts', links=[p.toNamespace()] + links, noValue='none, or kube-state-metrics is not scraped', width=width),
}
