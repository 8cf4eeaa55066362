"""Where landing, lake and checkpoint lie: a folder of this machine, an object store, or a file system of fsspec's.

One object for all of them (`store.Store`), which gateway and sink open by an address (`opening.open_store`); the agent
needs none of it. Comes in: an address, storage options, paths below it. Goes out: documents and files, or an OSError.

Durable is what `put_if_absent` and `put` returned for, and what was closed and then made durable. A document appears
whole or not at all. A kill inside of a put leaves, in a folder, a hidden draft that nobody reads; in an object store it
leaves nothing, and inside of a large file's upload parts of it, which the store's own rule for unfinished uploads
removes. Of several that put the same path if absent, in whatever process, one wins: a folder's link and an object
store's conditional put decide it. A file system of fsspec's has neither, and takes one writer alone.

Whatever a store answers, it may answer otherwise later: all of its errors are transient, and `StoreFailed.reason` says
what it was, e.g. `NoSuchBucket`. That a file is not there is an answer; that its bucket is not there is a failure.
"""
