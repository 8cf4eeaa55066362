"""Hostile bytes for the compiled core: mutated logs of real servers, guided by coverage, under red zones.

``make fuzz`` (`python -m tests.fuzz`) builds the core with AddressSanitizer, UndefinedBehaviorSanitizer and edge
coverage (`build`), and runs `worker`, which mutates (`mutate`) transactions of the logs in ``seeds/``, feeds them to
the decoder (`target`) and keeps what reached new code. What crashes, hangs, reads too far, asks for too much memory or
raises anything but a typed error is kept as a file, which ``python -m tests.fuzz replay FILE`` runs again.
"""
