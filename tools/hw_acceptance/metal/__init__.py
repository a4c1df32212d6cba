"""What a Mac alone can show of DEV=METAL, in one report that may be sent to strangers.

``python -m tools.hw_acceptance metal`` runs the steps of `steps` and writes a report. Each has a
process of its own: an exception of Objective-C ends that, and the next step runs.
"""
