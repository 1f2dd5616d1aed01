"""The recurrence of docs/family.md in plain numpy, from a layer's writes. It keeps A^-1; layers and pages keep A."""

import numpy as np


def states(writes, h=0):
    """(S, A or None) after every token, of row 0 and head h."""
    rule, T = writes.rule, writes.k.shape[1]
    k, v, u, beta, decay, w = (
        None if x is None else x[0, :, h].double().numpy()
        for x in (writes.k, writes.v, writes.u, writes.beta, writes.decay, writes.strength)
    )
    D, Dv = k.shape[1], v.shape[1]
    S, prior, log_C = np.zeros((Dv, D)), None if rule.lambda0 is None else rule.lambda0 * np.eye(D), 0.0
    P, found = prior, []  # P is A^-1
    for t in range(T):
        d = np.ones(1) if decay is None else np.atleast_1d(decay[t])
        if P is not None:
            if rule.forget_at and t and t % rule.beat == 0:
                C, log_C = np.exp(log_C), 0.0
                P = P + (1 - C) * prior if rule.forget_at == "token" else prior + C * (P - prior)
            log_C += float(np.log(d[0]))
            P = P * d[0] if rule.forget_at == "token" else P
            P = P if u is None else P + (rule.penalty if w is None else w[t]) * np.outer(u[t], u[t])
            if rule.refresh and (t + 1) % rule.refresh[0] == 0:
                P = np.linalg.inv(np.linalg.inv(P) + rule.refresh[1] * np.eye(D))
        a = k[t]
        if rule.gain is not None:
            a = np.linalg.solve(P, k[t])
            a = a / {"unit": np.linalg.norm(a), "projection": k[t] @ a, "raw": 1}[rule.gain]
        decayed = d[:, None] * S
        e = v[t] - (decayed if rule.decay_first else S) @ k[t] if rule.error else v[t]
        S = decayed + (1 if beta is None else beta[t]) * np.outer(e, a)
        found.append((S, None if P is None else np.linalg.inv(P)))
    return found
