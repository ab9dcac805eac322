// Package check is the witness of the guarantees: it reads a whole stream back and says what in it breaks them.
//
// It knows the names and formats of the contract and nothing of the bridge's code, so that a mistake there cannot hide
// itself here. What it verifies:
//
//   - of the stream alone ([Stream.Verify]): per subject rising versions, epochs that never fall, one message per (uid,
//     resourceVersion), one deletion per uid, another uid only after a deletion, every message's headers and body as the
//     contract has them, each append conditional on the one before, and no change after a watermark that covers it;
//   - against the cluster at rest ([Stream.CompareState]): the last message of every object's subject equals the object,
//     and there is none for an object that is not there;
//   - against a recording of the cluster's changes ([Stream.CompareRecording]): every version is in the stream, with the
//     same content, unless a message says that it may be missing; and each was there, or said to be missing, when the
//     first watermark covered it. [Record] watches the API server, [RecordStore] the store beneath it.
package check
